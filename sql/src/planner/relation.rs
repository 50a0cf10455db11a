//! The planner's own form of a query: relations in an arena, each at most once.
//!
//! # Invariants
//! - Column names are unique within a relation, and expressions refer to columns by name alone, unqualified.
//! - Column types are those that a node's schema may have (see [`canonical`]).
//! - Equal relations have the same id: what a query names twice is planned, and kept in state, once.
//! - A relation's inputs have smaller ids.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use datafusion::arrow::datatypes::{DataType, Field, Schema, SchemaRef};
use datafusion::common::{DFSchema, ScalarValue};
use datafusion::logical_expr::Expr;
use weir_catalog::{Error, ObjectId, Result, SqlType};

use crate::graph::AggregateFunction;

/// A relation's place in [`Relations`].
pub(super) type RelationId = usize;

/// A column of a relation. All are nullable: an engine that relied on NOT NULL would have to prove it through every step.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct RelationColumn {
    pub name: String,
    pub data_type: DataType,
}

/// What makes a relation's rows.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum Relation {
    /// All columns of a stored table, materialized view or connector table.
    Scan {
        object: ObjectId,
    },
    Values {
        rows: Vec<Vec<ScalarValue>>,
    },
    Calc {
        input: RelationId,
        filter: Option<Expr>,
        projection: Vec<Expr>,
    },
    /// The input begins with the group columns; calls name columns of the input.
    Aggregate {
        input: RelationId,
        group_columns: usize,
        calls: Vec<Call>,
        global: bool,
        distinct: bool,
        uid: Option<String>,
    },
    /// A row for each element of the input's column `array`, which is a column of the elements then. The others are the input's.
    Unnest {
        input: RelationId,
        array: String,
        outer: bool,
    },
    /// The inputs have this relation's columns.
    Union {
        inputs: Vec<RelationId>,
    },
}

/// A call of an aggregate function over named columns of the input.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Call {
    pub function: AggregateFunction,
    pub argument: Option<String>,
    pub distinct: bool,
    pub filter: Option<String>,
}

impl Relation {
    /// The relations it reads.
    pub(super) fn inputs(&self) -> &[RelationId] {
        match self {
            Relation::Scan { .. } | Relation::Values { .. } => &[],
            Relation::Calc { input, .. } | Relation::Aggregate { input, .. } | Relation::Unnest { input, .. } => {
                std::slice::from_ref(input)
            }
            Relation::Union { inputs } => inputs,
        }
    }
}

/// The arena.
#[derive(Default)]
pub(super) struct Relations {
    entries: Vec<Entry>,
    ids: HashMap<(Relation, Vec<RelationColumn>), RelationId>,
}

struct Entry {
    relation: Relation,
    columns: Vec<RelationColumn>,
    schema: Arc<DFSchema>,
}

impl Relations {
    /// The id of `relation` with these columns; a new one if there is none.
    pub(super) fn add(&mut self, relation: Relation, columns: Vec<RelationColumn>) -> Result<RelationId> {
        if let Some(id) = self.ids.get(&(relation.clone(), columns.clone())) {
            return Ok(*id);
        }
        let id = self.entries.len();
        let schema = Arc::new(df_schema(&arrow_schema(&columns))?);
        self.ids.insert((relation.clone(), columns.clone()), id);
        self.entries.push(Entry { relation, columns, schema });
        Ok(id)
    }

    pub(super) fn relation(&self, id: RelationId) -> &Relation {
        &self.entries[id].relation
    }

    pub(super) fn columns(&self, id: RelationId) -> &[RelationColumn] {
        &self.entries[id].columns
    }

    pub(super) fn schema(&self, id: RelationId) -> &Arc<DFSchema> {
        &self.entries[id].schema
    }

    /// The position of a column that is known to be there.
    pub(super) fn position(&self, id: RelationId, name: &str) -> Result<usize> {
        self.columns(id)
            .iter()
            .position(|column| column.name == name)
            .ok_or_else(|| Error::internal(format!("the planner lost column \"{name}\"")))
    }

    /// Everything below `root` and itself, inputs first, in the order in which the query names it.
    pub(super) fn topological(&self, root: RelationId) -> Vec<RelationId> {
        let mut seen = vec![false; self.entries.len()];
        let mut order = Vec::new();
        let mut stack = vec![(root, 0)];
        seen[root] = true;
        while let Some((id, next)) = stack.pop() {
            match self.relation(id).inputs().get(next) {
                Some(&input) => {
                    stack.push((id, next + 1));
                    if !seen[input] {
                        seen[input] = true;
                        stack.push((input, 0));
                    }
                }
                None => order.push(id),
            }
        }
        order
    }

    /// How many edges leave each relation below `root`, by id.
    pub(super) fn uses(&self, root: RelationId) -> Vec<usize> {
        let mut uses = vec![0; self.entries.len()];
        for id in self.topological(root) {
            for &input in self.relation(id).inputs() {
                uses[input] += 1;
            }
        }
        uses
    }
}

/// The Arrow schema of `columns`.
pub(super) fn arrow_schema(columns: &[RelationColumn]) -> SchemaRef {
    Arc::new(Schema::new(columns.iter().map(|column| Field::new(&column.name, column.data_type.clone(), true)).collect::<Vec<_>>()))
}

/// `schema` as expressions over it are resolved.
pub(super) fn df_schema(schema: &SchemaRef) -> Result<DFSchema> {
    DFSchema::from_unqualified_fields(schema.fields().clone(), Default::default())
        .map_err(|e| Error::internal(format!("the planner made a schema that DataFusion refuses: {e}")))
}

/// The type that holds `data_type` on an edge: TEXT is `Utf8`, a timestamp microseconds, and so on.
///
/// Errors with `0A000` for a type that no SQL type of weir has.
pub(super) fn canonical(data_type: &DataType, what: &str) -> Result<DataType> {
    match SqlType::from_arrow(data_type) {
        Some(ty) => Ok(ty.to_arrow()),
        None => Err(Error::unsupported(format!(
            "{what} has type {}, which a continuous query can't hold",
            data_type.to_string().to_lowercase()
        ))
        .with_hint("Cast it to BOOLEAN, INT, BIGINT, DOUBLE PRECISION, NUMERIC, TEXT or TIMESTAMP.")),
    }
}

/// `names` made unique by a number behind what repeats.
pub(super) fn unique_names(names: Vec<String>) -> Vec<String> {
    let mut taken: HashSet<String> = HashSet::with_capacity(names.len());
    // What was tried for a name and was not free never is again.
    let mut last: HashMap<String, usize> = HashMap::new();
    names
        .into_iter()
        .map(|name| {
            if taken.insert(name.clone()) {
                return name;
            }
            let mut number = last.get(&name).copied().unwrap_or(1);
            let candidate = loop {
                number += 1;
                let candidate = format!("{name}#{number}");
                if taken.insert(candidate.clone()) {
                    break candidate;
                }
            };
            last.insert(name, number);
            candidate
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::unique_names;

    #[test]
    fn names_are_made_unique() {
        let unique = |names: &[&str]| unique_names(names.iter().map(|name| name.to_string()).collect()).join(" ");
        assert_eq!(unique(&["a", "b", "a", "a"]), "a b a#2 a#3");
        assert_eq!(unique(&["a#2", "a", "a", "a#2", "a"]), "a#2 a a#3 a#2#2 a#4");
    }
}
