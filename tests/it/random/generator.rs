//! Makes tables, updates, queries and barriers out of lists of numbers.
//!
//! Every decision takes the next number of a list; when the list has ended every decision is the simplest one. So any list is a case, and a
//! shorter list or a smaller number is a simpler case: that is what lets proptest shrink one.
//!
//! # Invariants
//! - Every statement is one that PostgreSQL accepts with the same meaning (`CREATE MATERIALIZED VIEW` read as `CREATE VIEW`).
//! - No expression fails on a row: divisors are guarded, and numbers stay far below their type's bounds.
//! - Doubles are multiples of a quarter, so that their sums are exact in any order.

use weir::seams::random::Random;

/// Numbers to decide by.
struct Choices<'a> {
    numbers: &'a [u32],
    next: usize,
}

impl<'a> Choices<'a> {
    fn new(numbers: &'a [u32]) -> Choices<'a> {
        Choices { numbers, next: 0 }
    }

    /// A number below `bound`: 0 once the list has ended.
    fn below(&mut self, bound: usize) -> usize {
        let number = self.numbers.get(self.next).copied().unwrap_or(0);
        self.next += 1;
        number as usize % bound
    }

    fn pick<'b, T>(&mut self, options: &'b [T]) -> &'b T {
        &options[self.below(options.len())]
    }

    /// True once in `of` times, false when the list has ended.
    fn once_in(&mut self, of: usize) -> bool {
        self.below(of) == of - 1
    }
}

/// The lists that a case is made of.
#[derive(Clone, Debug)]
pub struct Numbers {
    pub tables: Vec<u32>,
    /// One list a view.
    pub views: Vec<Vec<u32>>,
    /// One list a step.
    pub steps: Vec<Vec<u32>>,
}

/// Tables, views, and what happens to them.
#[derive(Clone, Debug)]
pub struct Case {
    tables: Vec<Relation>,
    pub steps: Vec<Step>,
    /// Of each view its name, its query, and one that differs from it in one decision.
    pub changed: Vec<(String, String, String)>,
}

/// What happens next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// A table or a view is made.
    Create {
        name: String,
        sql: String,
    },
    /// One statement, or a transaction of several.
    Change(Vec<String>),
    /// Every view must show the batch answer after FLUSH.
    Compare,
    Checkpoint,
    /// kill -9, and a start with this parallelism.
    Restart {
        parallelism: usize,
    },
}

#[derive(Clone, Debug)]
struct Relation {
    name: String,
    columns: Vec<(String, Type)>,
    /// The first column is the primary key.
    keyed: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Type {
    Int,
    BigInt,
    Double,
    Numeric,
    Text,
    Boolean,
    Timestamp,
    /// An average: its type and digits are the system's own affair, so it is shown but not computed with.
    Average,
}

const TYPES: [Type; 7] = [Type::Int, Type::Text, Type::BigInt, Type::Double, Type::Numeric, Type::Boolean, Type::Timestamp];

impl Type {
    fn sql(self) -> &'static str {
        match self {
            Type::Int => "INT",
            Type::BigInt => "BIGINT",
            Type::Double => "DOUBLE PRECISION",
            Type::Numeric | Type::Average => "NUMERIC(12,2)",
            Type::Text => "TEXT",
            Type::Boolean => "BOOLEAN",
            Type::Timestamp => "TIMESTAMP",
        }
    }

    fn is_number(self) -> bool {
        matches!(self, Type::Int | Type::BigInt | Type::Double | Type::Numeric)
    }
}

/// A query and its result's columns.
struct Query {
    sql: String,
    columns: Vec<(String, Type)>,
}

impl Case {
    /// The case that `numbers` stand for; its names begin with `prefix`.
    pub fn build(numbers: &Numbers, prefix: &str) -> Case {
        let mut choices = Choices::new(&numbers.tables);
        let tables: Vec<Relation> = (0..1 + choices.below(3)).map(|i| new_table(&mut choices, format!("{prefix}t{i}"))).collect();
        let mut relations = tables.clone();
        let mut steps: Vec<Step> = tables.iter().map(|table| Step::Create { name: table.name.clone(), sql: create_table(table) }).collect();
        // Each view is made before the step of its place: some see all changes as they come, some begin with a backfill.
        let mut places: Vec<usize> = (0..numbers.views.len()).map(|_| choices.below(numbers.steps.len() + 1)).collect();
        places.sort_unstable();
        let mut views = numbers.views.iter().zip(places).enumerate().peekable();
        let mut changed = Vec::new();
        let mut writer = Writer { tables: tables.clone(), next_id: 1 };
        for (place, step) in numbers.steps.iter().map(Some).chain([None]).enumerate() {
            while let Some((i, (list, _))) = views.next_if(|(_, (_, at))| *at == place) {
                let query = query(&mut Choices::new(list), &relations, 2);
                let name = format!("{prefix}v{i}");
                let mut other = list.clone();
                let decision = list.iter().fold(i, |sum, number| sum.wrapping_add(*number as usize)) % (list.len() + 1).min(30);
                other.resize(other.len().max(decision + 1), 0);
                other[decision] = other[decision].wrapping_add(1);
                let other = self::query(&mut Choices::new(&other), &relations, 2);
                changed.push((name.clone(), query.sql.clone(), other.sql));
                steps.push(Step::Create { name: name.clone(), sql: format!("CREATE MATERIALIZED VIEW {name} AS {}", query.sql) });
                relations.push(Relation { name, columns: query.columns, keyed: false });
            }
            if let Some(list) = step {
                steps.push(writer.step(&mut Choices::new(list)));
            }
        }
        steps.push(Step::Compare);
        Case { tables, steps, changed }
    }

    /// A case of random numbers.
    pub fn drawn(random: &mut Random, prefix: &str) -> Case {
        let mut list = |length: u64| -> Vec<u32> { (0..length).map(|_| random.next_u64() as u32).collect() };
        let tables = list(60);
        let views = (0..5).map(|_| list(120)).collect();
        let steps = (0..16).map(|_| list(80)).collect();
        Case::build(&Numbers { tables, views, steps }, prefix)
    }

    /// The statements of its steps, in order.
    pub fn statements(&self) -> Vec<String> {
        (self.steps.iter())
            .flat_map(|step| match step {
                Step::Create { sql, .. } => vec![sql.clone()],
                Step::Change(statements) => statements.clone(),
                _ => Vec::new(),
            })
            .collect()
    }

    /// Its tables and views.
    pub fn readable(&self) -> Vec<String> {
        (self.steps.iter())
            .filter_map(|step| match step {
                Step::Create { name, .. } => Some(name.clone()),
                _ => None,
            })
            .collect()
    }

    /// The statements that remove what it made.
    pub fn clean_up(&self) -> Vec<String> {
        self.tables.iter().map(|table| format!("DROP TABLE {} CASCADE", table.name)).collect()
    }
}

fn new_table(choices: &mut Choices, name: String) -> Relation {
    let keyed = choices.below(2) == 0;
    let mut columns = vec![("id".to_string(), Type::Int)];
    for i in 0..2 + choices.below(4) {
        columns.push((format!("a{i}"), *choices.pick(&TYPES)));
    }
    Relation { name, columns, keyed }
}

fn create_table(table: &Relation) -> String {
    let columns: Vec<String> = (table.columns.iter().enumerate())
        .map(|(i, (name, ty))| format!("{name} {}{}", ty.sql(), if i == 0 && table.keyed { " PRIMARY KEY" } else { "" }))
        .collect();
    format!("CREATE TABLE {} ({})", table.name, columns.join(", "))
}

/// Makes the steps that change tables.
struct Writer {
    tables: Vec<Relation>,
    next_id: usize,
}

impl Writer {
    fn step(&mut self, choices: &mut Choices) -> Step {
        match choices.below(16) {
            12 => Step::Compare,
            13 => Step::Checkpoint,
            14 => Step::Restart { parallelism: 1 + choices.below(4) },
            11 | 15 => {
                let count = 2 + choices.below(3);
                let mut statements = vec!["BEGIN".to_string()];
                statements.extend((0..count).map(|_| self.change(choices, false)));
                statements.push(if choices.once_in(4) { "ROLLBACK" } else { "COMMIT" }.to_string());
                Step::Change(statements)
            }
            _ => Step::Change(vec![self.change(choices, true)]),
        }
    }

    /// One statement that changes a table. A key is used twice only where the statement `may_fail`.
    fn change(&mut self, choices: &mut Choices, may_fail: bool) -> String {
        let table = choices.pick(&self.tables).clone();
        match choices.below(8) {
            5 => {
                let (name, ty) = &table.columns[1 + choices.below(table.columns.len() - 1)];
                format!(
                    "UPDATE {} SET {name} = {} WHERE {}",
                    table.name,
                    stored(choices, *ty, &table.columns),
                    predicate(choices, &table.columns, 1)
                )
            }
            6 => format!("DELETE FROM {} WHERE {}", table.name, predicate(choices, &table.columns, 1)),
            7 if !table.keyed => {
                let source = choices.pick(&self.tables).clone();
                let values: Vec<String> = table.columns.iter().map(|(_, ty)| stored(choices, *ty, &source.columns)).collect();
                // A table that doubles at every step would soon be all there is.
                format!(
                    "INSERT INTO {} SELECT {} FROM {} WHERE {} = {}",
                    table.name,
                    values.join(", "),
                    source.name,
                    source.columns[0].0,
                    choices.below(20)
                )
            }
            _ => {
                let rows: Vec<String> = (0..1 + choices.below(6)).map(|_| self.row(choices, &table, may_fail)).collect();
                format!("INSERT INTO {} VALUES {}", table.name, rows.join(", "))
            }
        }
    }

    fn row(&mut self, choices: &mut Choices, table: &Relation, may_fail: bool) -> String {
        let id = if table.keyed && may_fail && choices.once_in(25) { 1 } else { self.next_id };
        self.next_id += 1;
        let mut values = vec![id.to_string()];
        for (_, ty) in &table.columns[1..] {
            values.push(if choices.once_in(6) { "NULL".to_string() } else { literal(choices, *ty) });
        }
        format!("({})", values.join(", "))
    }
}

/// A value to store: it does not grow with each update.
fn stored(choices: &mut Choices, ty: Type, scope: &[(String, Type)]) -> String {
    let leaf = leaf(choices, ty, scope);
    match choices.below(4) {
        0 | 1 => literal(choices, ty),
        2 => leaf,
        _ => format!("CASE WHEN {} THEN {leaf} ELSE {} END", predicate(choices, scope, 0), literal(choices, ty)),
    }
}

/// A constant of exactly this type.
fn literal(choices: &mut Choices, ty: Type) -> String {
    match ty {
        Type::Int => choices.pick(&["1", "0", "2", "3", "7", "(-4)", "19"]).to_string(),
        Type::BigInt => format!("CAST({} AS BIGINT)", choices.pick(&["1", "0", "5", "(-30)", "1000"])),
        Type::Double => format!("CAST({} AS DOUBLE PRECISION)", choices.pick(&["1.5", "0", "0.25", "(-2.75)", "1000"])),
        Type::Numeric | Type::Average => format!("CAST({} AS NUMERIC(12,2))", choices.pick(&["1.25", "0", "10.10", "(-3.33)", "99.99"])),
        Type::Text => choices.pick(&["'a'", "'b'", "'ab'", "''", "'B c'", "' x '", "'日本'"]).to_string(),
        Type::Boolean => choices.pick(&["TRUE", "FALSE"]).to_string(),
        Type::Timestamp => {
            format!("TIMESTAMP '{}'", choices.pick(&["2024-01-01 00:00:00", "2024-02-29 12:30:45.5", "1999-12-31 23:59:59.999999"]))
        }
    }
}

/// A column of this type, or a constant where there is none.
fn leaf(choices: &mut Choices, ty: Type, scope: &[(String, Type)]) -> String {
    let columns: Vec<&String> = scope.iter().filter(|(_, other)| *other == ty).map(|(name, _)| name).collect();
    if columns.is_empty() || choices.once_in(6) { literal(choices, ty) } else { (*choices.pick(&columns)).clone() }
}

/// An expression of this type.
fn scalar(choices: &mut Choices, ty: Type, scope: &[(String, Type)], depth: usize) -> String {
    if depth == 0 || choices.below(3) == 0 {
        return leaf(choices, ty, scope);
    }
    let kind = choices.below(10);
    let one = scalar(choices, ty, scope, depth - 1);
    let other = |choices: &mut Choices| scalar(choices, ty, scope, depth - 1);
    match (ty, kind) {
        (_, 0) => format!("COALESCE({one}, {})", other(choices)),
        (_, 1) => format!("CASE WHEN {} THEN {one} ELSE {} END", predicate(choices, scope, depth - 1), other(choices)),
        (_, 2) => format!("CASE WHEN {} THEN {one} END", predicate(choices, scope, depth - 1)),
        (Type::Int | Type::BigInt | Type::Double | Type::Numeric, 3) => format!("({one} + {})", other(choices)),
        (Type::Int | Type::BigInt | Type::Double | Type::Numeric, 4) => format!("({one} - {})", other(choices)),
        (Type::Int | Type::BigInt | Type::Numeric, 5) => format!("({one} * {})", choices.pick(&["2", "3"])),
        (Type::Double, 5) => format!("({one} * 2)"),
        (Type::Int | Type::BigInt, 6) => format!("({one} / NULLIF({}, 0))", other(choices)),
        (Type::Int | Type::BigInt, 7) => format!("({one} % NULLIF({}, 0))", other(choices)),
        (Type::Double, 6) => format!("({one} / 4)"),
        (Type::Int | Type::BigInt | Type::Double | Type::Numeric, 8) => format!("abs({one})"),
        (Type::Int, _) => format!("length({})", scalar(choices, Type::Text, scope, depth - 1)),
        (Type::BigInt, _) => {
            let from = number_type(choices);
            format!("CAST({} AS BIGINT)", scalar(choices, from, scope, depth - 1))
        }
        (Type::Double, _) => format!("CAST({} AS DOUBLE PRECISION)", scalar(choices, Type::Int, scope, depth - 1)),
        (Type::Numeric, _) => format!("CAST({} AS NUMERIC(12,2))", scalar(choices, Type::Int, scope, depth - 1)),
        (Type::Text, 3 | 4) => format!("({one} || {})", other(choices)),
        (Type::Text, 5) => format!("upper({one})"),
        (Type::Text, 6) => format!("substr({one}, 1, 2)"),
        (Type::Text, 7) => format!("trim({one})"),
        (Type::Text, 8) => format!("replace({one}, 'a', 'zz')"),
        (Type::Text, _) => format!("CAST({} AS TEXT)", scalar(choices, Type::Int, scope, depth - 1)),
        (Type::Boolean, _) => predicate(choices, scope, depth),
        (Type::Timestamp | Type::Average, _) => format!("NULLIF({one}, {})", other(choices)),
    }
}

/// A type of numbers.
fn number_type(choices: &mut Choices) -> Type {
    *choices.pick(&[Type::Int, Type::BigInt, Type::Double, Type::Numeric])
}

/// A condition, in parentheses.
fn predicate(choices: &mut Choices, scope: &[(String, Type)], depth: usize) -> String {
    if depth > 0 {
        match choices.below(6) {
            3 => return format!("({} AND {})", predicate(choices, scope, depth - 1), predicate(choices, scope, depth - 1)),
            4 => return format!("({} OR {})", predicate(choices, scope, depth - 1), predicate(choices, scope, depth - 1)),
            5 => return format!("(NOT {})", predicate(choices, scope, depth - 1)),
            _ => {}
        }
    }
    let types: Vec<Type> = scope.iter().map(|(_, ty)| *ty).filter(|ty| *ty != Type::Average).collect();
    let ty = if types.is_empty() { Type::Int } else { *choices.pick(&types) };
    let left = scalar(choices, ty, scope, depth);
    match choices.below(9) {
        0 => format!("({left} > {})", literal(choices, ty)),
        1 => format!("({left} = {})", scalar(choices, ty, scope, depth.saturating_sub(1))),
        2 => format!("({left} IS NOT NULL)"),
        3 => format!("({left} IS NULL)"),
        4 => format!("({left} <> {})", literal(choices, ty)),
        5 => format!("({left} IN ({}, {}))", literal(choices, ty), literal(choices, ty)),
        6 => format!("({left} BETWEEN {} AND {})", literal(choices, ty), literal(choices, ty)),
        7 if ty == Type::Text => format!("({left} LIKE {})", choices.pick(&["'a%'", "'%b'", "'_'", "'%'"])),
        7 => format!("({left} <= {})", scalar(choices, ty, scope, depth.saturating_sub(1))),
        _ => format!("({left} IS DISTINCT FROM {})", literal(choices, ty)),
    }
}

/// A query over `relations`.
fn query(choices: &mut Choices, relations: &[Relation], depth: usize) -> Query {
    match choices.below(9) {
        0 => select(choices, relations, depth, "SELECT"),
        1..=3 => group_by(choices, relations, depth),
        4 => select(choices, relations, depth, "SELECT DISTINCT"),
        5 => union_all(choices, relations, depth),
        6 => global_aggregate(choices, relations, depth),
        7 if depth > 0 => {
            let inner = query(choices, relations, depth - 1);
            let w = [Relation { name: "w".to_string(), columns: inner.columns, keyed: false }];
            let outer = if choices.below(2) == 0 { group_by(choices, &w, 0) } else { union_all(choices, &w, 0) };
            Query { sql: format!("WITH w AS ({}) {}", inner.sql, outer.sql), columns: outer.columns }
        }
        _ => group_by(choices, relations, depth),
    }
}

/// What stands behind FROM, and the columns it has.
fn source(choices: &mut Choices, relations: &[Relation], depth: usize) -> (String, Vec<(String, Type)>) {
    if depth > 0 && choices.once_in(4) {
        let inner = query(choices, relations, depth - 1);
        return (format!("({}) AS s", inner.sql), inner.columns);
    }
    let relation = choices.pick(relations);
    (relation.name.clone(), relation.columns.clone())
}

fn filter(choices: &mut Choices, scope: &[(String, Type)]) -> String {
    if choices.below(2) == 0 { String::new() } else { format!(" WHERE {}", predicate(choices, scope, 1)) }
}

fn select(choices: &mut Choices, relations: &[Relation], depth: usize, verb: &str) -> Query {
    let (from, scope) = source(choices, relations, depth);
    let mut items = Vec::new();
    let mut columns = Vec::new();
    for i in 0..1 + choices.below(4) {
        let (sql, ty) = if choices.below(2) == 0 {
            choices.pick(&scope).clone()
        } else {
            let ty = *choices.pick(&TYPES);
            (scalar(choices, ty, &scope, 2), ty)
        };
        items.push(format!("{sql} AS c{i}"));
        columns.push((format!("c{i}"), ty));
    }
    Query { sql: format!("{verb} {} FROM {from}{}", items.join(", "), filter(choices, &scope)), columns }
}

fn union_all(choices: &mut Choices, relations: &[Relation], depth: usize) -> Query {
    let types: Vec<Type> = (0..1 + choices.below(3)).map(|_| *choices.pick(&TYPES)).collect();
    let mut branches = Vec::new();
    for _ in 0..2 + choices.below(2) {
        let (from, scope) = source(choices, relations, depth.saturating_sub(1));
        let items: Vec<String> = types.iter().enumerate().map(|(i, ty)| format!("{} AS c{i}", scalar(choices, *ty, &scope, 1))).collect();
        branches.push(format!("SELECT {} FROM {from}{}", items.join(", "), filter(choices, &scope)));
    }
    Query { sql: branches.join(" UNION ALL "), columns: types.iter().enumerate().map(|(i, ty)| (format!("c{i}"), *ty)).collect() }
}

/// A grouping key: always over a column, for a constant there would mean a position.
fn group_key(choices: &mut Choices, scope: &[(String, Type)]) -> (String, Type) {
    let keys: Vec<&(String, Type)> = scope.iter().filter(|(_, ty)| *ty != Type::Average).collect();
    let Some((name, ty)) = (!keys.is_empty()).then(|| (*choices.pick(&keys)).clone()) else {
        return (format!("({} IS NULL)", scope[0].0), Type::Boolean);
    };
    match (choices.below(4), ty) {
        (2, _) => (format!("COALESCE({name}, {})", literal(choices, ty)), ty),
        (3, Type::Int | Type::BigInt) => (format!("({name} % 3)"), ty),
        (3, Type::Text) => (format!("upper({name})"), ty),
        (3, _) => (format!("({name} IS NULL)"), Type::Boolean),
        _ => (name, ty),
    }
}

/// A call of an aggregate function.
fn aggregate(choices: &mut Choices, scope: &[(String, Type)]) -> (String, Type) {
    let any = |choices: &mut Choices| *choices.pick(&TYPES);
    let (call, ty) = match choices.below(10) {
        0 => ("COUNT(*)".to_string(), Type::BigInt),
        1 | 2 => {
            let ty = number_type(choices);
            let distinct = if choices.once_in(4) { "DISTINCT " } else { "" };
            let result = match ty {
                Type::Int => Type::BigInt,
                Type::BigInt => Type::Numeric,
                other => other,
            };
            (format!("SUM({distinct}{})", scalar(choices, ty, scope, 1)), result)
        }
        3 | 4 => {
            let ty = any(choices);
            // PostgreSQL has no min(boolean).
            let ty = if ty == Type::Boolean { Type::Int } else { ty };
            (format!("{}({})", choices.pick(&["MIN", "MAX"]), scalar(choices, ty, scope, 1)), ty)
        }
        5 => {
            let ty = any(choices);
            (format!("COUNT({})", scalar(choices, ty, scope, 1)), Type::BigInt)
        }
        6 => {
            let ty = any(choices);
            (format!("COUNT(DISTINCT {})", scalar(choices, ty, scope, 1)), Type::BigInt)
        }
        7 => {
            let ty = number_type(choices);
            (format!("AVG({})", scalar(choices, ty, scope, 1)), Type::Average)
        }
        _ => (format!("{}({})", choices.pick(&["BOOL_AND", "BOOL_OR"]), predicate(choices, scope, 1)), Type::Boolean),
    };
    if choices.once_in(4) { (format!("{call} FILTER (WHERE {})", predicate(choices, scope, 1)), ty) } else { (call, ty) }
}

fn group_by(choices: &mut Choices, relations: &[Relation], depth: usize) -> Query {
    let (from, scope) = source(choices, relations, depth);
    let keys: Vec<(String, Type)> = (0..1 + choices.below(2)).map(|_| group_key(choices, &scope)).collect();
    let calls: Vec<(String, Type)> = (0..1 + choices.below(4)).map(|_| aggregate(choices, &scope)).collect();
    let filter = filter(choices, &scope);
    let having = match choices.below(5) {
        3 => " HAVING COUNT(*) > 1".to_string(),
        4 => {
            let (call, ty) = aggregate(choices, &scope);
            if ty.is_number() { format!(" HAVING {call} > 2") } else { format!(" HAVING {call} IS NOT NULL") }
        }
        _ => String::new(),
    };
    let items: Vec<String> = keys.iter().chain(&calls).enumerate().map(|(i, (sql, _))| format!("{sql} AS c{i}")).collect();
    let group: Vec<&str> = keys.iter().map(|(sql, _)| sql.as_str()).collect();
    Query {
        sql: format!("SELECT {} FROM {from}{filter} GROUP BY {}{having}", items.join(", "), group.join(", ")),
        columns: keys.iter().chain(&calls).enumerate().map(|(i, (_, ty))| (format!("c{i}"), *ty)).collect(),
    }
}

fn global_aggregate(choices: &mut Choices, relations: &[Relation], depth: usize) -> Query {
    let (from, scope) = source(choices, relations, depth);
    let calls: Vec<(String, Type)> = (0..1 + choices.below(4)).map(|_| aggregate(choices, &scope)).collect();
    let items: Vec<String> = calls.iter().enumerate().map(|(i, (sql, _))| format!("{sql} AS c{i}")).collect();
    Query {
        sql: format!("SELECT {} FROM {from}{}", items.join(", "), filter(choices, &scope)),
        columns: calls.iter().enumerate().map(|(i, (_, ty))| (format!("c{i}"), *ty)).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn empty_lists_make_the_simplest_case() {
        let case = Case::build(&Numbers { tables: vec![], views: vec![vec![]], steps: vec![vec![]] }, "");
        assert_eq!(case.readable(), ["t0", "v0"]);
        assert_eq!(case.statements()[1], "CREATE MATERIALIZED VIEW v0 AS SELECT id AS c0 FROM t0");
        assert_eq!(case.steps.last(), Some(&Step::Compare));
    }

    #[test]
    fn the_same_numbers_make_the_same_case() {
        let one = Case::drawn(&mut Random::seeded(7), "p_");
        let two = Case::drawn(&mut Random::seeded(7), "p_");
        assert_eq!(one.statements(), two.statements());
        assert_ne!(one.statements(), Case::drawn(&mut Random::seeded(8), "p_").statements());
    }

    #[test]
    fn every_kind_of_query_and_step_is_made() {
        let mut random = Random::seeded(1);
        let cases: Vec<Case> = (0..100).map(|_| Case::drawn(&mut random, "")).collect();
        let text = cases.iter().flat_map(Case::statements).collect::<Vec<_>>().join("\n");
        for part in [
            "GROUP BY",
            "HAVING",
            "FILTER",
            "SELECT DISTINCT",
            "COUNT(DISTINCT",
            "SUM(DISTINCT",
            "UNION ALL",
            "WITH w AS",
            ") AS s",
            "AVG(",
            "BOOL_AND",
            "BOOL_OR",
            "MIN(",
            "MAX(",
            "CASE WHEN",
            "CAST(",
            "UPDATE",
            "DELETE",
            "ROLLBACK",
            "COMMIT",
            "LIKE",
            "IS DISTINCT FROM",
        ] {
            assert!(text.contains(part), "no {part}");
        }
        assert!(cases.iter().any(|case| case.steps.contains(&Step::Checkpoint)));
        assert!(cases.iter().flat_map(|case| &case.steps).any(|step| matches!(step, Step::Restart { parallelism } if *parallelism != 2)));
    }
}
