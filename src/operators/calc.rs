//! Filter and projection: DataFusion physical expressions on columns.
//!
//! # Invariants
//! - The projection is evaluated on the rows that the filter lets through, and on no others: a row that the filter drops can't fail in the projection.
//! - Integer arithmetic that leaves its type is an error (22003): DataFusion's own default wraps.
//! - Row kinds stay with their rows.
//! - What is needed several times is evaluated once for a batch (`common`), and makes no difference to results and errors.

mod common;

use std::collections::{BTreeSet, HashSet};
use std::sync::Arc;

use arrow::array::{ArrayRef, AsArray, RecordBatch, RecordBatchOptions, UInt8Array};
use arrow::compute::{CastOptions, FilterBuilder, cast_with_options};
use arrow::datatypes::{DataType, Field, FieldRef, Fields, Schema, SchemaRef, UInt8Type};
use datafusion::common::tree_node::{Transformed, TreeNode};
use datafusion::common::{Column, DFSchema, ScalarValue};
use datafusion::error::DataFusionError;
use datafusion::logical_expr::execution_props::ExecutionProps;
use datafusion::logical_expr::physical_planning_context::PhysicalPlanningContext;
use datafusion::logical_expr::{Expr, Operator as BinaryOperator};
use datafusion::physical_expr::create_physical_expr;
use datafusion::physical_expr::expressions::{BinaryExpr, Literal, NegativeExpr};
use datafusion::physical_expr_common::physical_expr::PhysicalExpr;
use weir_catalog::{Error, Result};
use weir_sql::planner::written_text;

use self::common::{Common, Shared};
use super::error::{describe_row, from_arrow, from_datafusion, shorten};
use super::{Operator, Output};
use crate::stream::{Batch, RowKinds};

/// How many characters of an expression an error shows.
const EXPRESSION_CHARACTERS: usize = 200;

/// The operator. See the head of this file.
#[derive(Debug)]
pub struct Calc {
    /// With common expressions evaluated once, where there are such.
    shared: Option<Program>,
    written: Program,
    output: SchemaRef,
}

/// A filter and a projection, compiled.
#[derive(Debug)]
struct Program {
    before_filter: Vec<Step>,
    filter: Option<Compiled>,
    /// The columns that the projection reads: only these are filtered.
    used: Vec<usize>,
    used_schema: SchemaRef,
    before_projection: Vec<Step>,
    projection: Vec<Compiled>,
}

/// A common expression, whose value is one more column for what follows.
#[derive(Debug)]
struct Step {
    expr: Compiled,
    field: FieldRef,
}

/// An expression ready to be evaluated.
#[derive(Debug)]
struct Compiled {
    expr: Arc<dyn PhysicalExpr>,
    /// The type that its result is cast to, where it has another.
    cast_to: Option<DataType>,
    /// `filter`, or the name of the column that it makes.
    role: String,
    /// It as the user wrote it.
    written: String,
}

/// How an expression is evaluated: [`Compiled::evaluate`], or without looking for the row that fails.
type Evaluate = fn(&Compiled, &RecordBatch) -> Result<ArrayRef>;

impl Calc {
    /// Compiles expressions over `input` that make the columns of `output`. Fails if an expression is not one that can be evaluated on a row, or the
    /// types can't be cast.
    pub fn new(input: &DFSchema, filter: Option<&Expr>, projection: &[Expr], output: SchemaRef) -> Result<Calc> {
        if projection.len() != output.fields().len() {
            return Err(Error::internal(format!("{} expressions are to make {} columns", projection.len(), output.fields().len())));
        }
        let shared = match common::share(input, filter, projection).map_err(from_datafusion)? {
            None => None,
            Some(shared) => Some(Program::new(input, &shared, &output)?),
        };
        let as_written =
            Shared { before_filter: vec![], filter: filter.cloned(), before_projection: vec![], projection: projection.to_vec() };
        let written = Program::new(input, &as_written, &output)?;
        Ok(Calc { shared, written, output })
    }
}

impl Operator for Calc {
    fn process(&mut self, _input: usize, batch: Batch, out: &mut dyn Output) -> Result<()> {
        if batch.num_rows() == 0 {
            return Ok(());
        }
        let result = match &self.shared {
            None => None,
            // What fails is evaluated once more as it was written: that tells which expression fails, if one does.
            Some(shared) => shared.run(&batch, &self.output, Compiled::evaluate_shared).ok(),
        };
        let result = match result {
            Some(result) => result,
            None => self.written.run(&batch, &self.output, Compiled::evaluate)?,
        };
        result.map_or(Ok(()), |batch| out.emit(batch))
    }
}

impl Program {
    fn new(input: &DFSchema, parts: &Shared, output: &SchemaRef) -> Result<Program> {
        let (before_filter, input) = steps(&parts.before_filter, input)?;
        let filter =
            parts.filter.as_ref().map(|filter| Compiled::new(filter, &input, &DataType::Boolean, "filter".to_string())).transpose()?;
        let made: HashSet<&Column> = parts.before_projection.iter().map(|common| &common.column).collect();
        let mut used = BTreeSet::new();
        for expr in parts.before_projection.iter().map(|common| &common.expr).chain(&parts.projection) {
            for column in expr.column_refs().into_iter().filter(|column| !made.contains(column)) {
                used.insert(input.index_of_column(column).map_err(from_datafusion)?);
            }
        }
        let used: Vec<usize> = used.into_iter().collect();
        let fields = used.iter().map(|column| {
            let (qualifier, field) = input.qualified_field(*column);
            (qualifier.cloned(), field.clone())
        });
        let used_schema = DFSchema::new_with_metadata(fields.collect(), Default::default()).map_err(from_datafusion)?;
        let (before_projection, extended) = steps(&parts.before_projection, &used_schema)?;
        let projection = parts
            .projection
            .iter()
            .zip(output.fields())
            .map(|(expr, field)| Compiled::new(expr, &extended, field.data_type(), format!("column \"{}\"", field.name())))
            .collect::<Result<Vec<_>>>()?;
        Ok(Program { before_filter, filter, used, used_schema: used_schema.inner().clone(), before_projection, projection })
    }

    /// The rows of `batch` that pass the filter, projected; `None` if there are none.
    fn run(&self, batch: &Batch, output: &SchemaRef, evaluate: Evaluate) -> Result<Option<Batch>> {
        let before = extend(&self.before_filter, &batch.rows, evaluate)?;
        let Some(batch) = self.filter(&Batch { rows: before.clone(), kinds: batch.kinds.clone() }, evaluate)? else {
            return Ok(None);
        };
        let rows = extend(&self.before_projection, &batch.rows, evaluate)?;
        let column = |expr| {
            evaluate(expr, &rows).or_else(|error| match self.with_others(&before, &rows, evaluate) {
                // The same error, told of a row that shows more.
                Ok(rows) => evaluate(expr, &rows),
                Err(_) => Err(error),
            })
        };
        let columns = self.projection.iter().map(column).collect::<Result<Vec<_>>>()?;
        Ok(Some(Batch { rows: record_batch(output, columns, rows.num_rows())?, kinds: batch.kinds }))
    }

    /// `rows`, which of `before` have passed the filter, with the columns that the projection does not read behind those that it does: a key among them
    /// tells which row it is.
    fn with_others(&self, before: &RecordBatch, rows: &RecordBatch, evaluate: Evaluate) -> Result<RecordBatch> {
        let passes = self.filter.as_ref().map(|filter| evaluate(filter, before)).transpose()?;
        let (mut columns, mut fields) = (rows.columns().to_vec(), rows.schema_ref().fields().to_vec());
        for other in (0..before.num_columns()).filter(|column| !self.used.contains(column)) {
            let column = before.column(other);
            columns.push(match &passes {
                None => column.clone(),
                Some(passes) => arrow::compute::filter(column, passes.as_boolean()).map_err(from_arrow)?,
            });
            fields.push(before.schema_ref().fields()[other].clone());
        }
        record_batch(&Arc::new(Schema::new(fields)), columns, rows.num_rows())
    }

    /// The rows of `batch` that pass the filter, with the columns that the projection reads; `None` if there are none.
    fn filter(&self, batch: &Batch, evaluate: Evaluate) -> Result<Option<Batch>> {
        let columns: Vec<ArrayRef> = self.used.iter().map(|column| batch.rows.column(*column).clone()).collect();
        let Some(filter) = &self.filter else {
            return Ok(Some(Batch { rows: record_batch(&self.used_schema, columns, batch.num_rows())?, kinds: batch.kinds.clone() }));
        };
        let passes = evaluate(filter, &batch.rows)?;
        let passes = passes.as_boolean();
        let passing = passes.true_count();
        if passing == 0 {
            return Ok(None);
        }
        if passing == batch.num_rows() {
            return Ok(Some(Batch { rows: record_batch(&self.used_schema, columns, passing)?, kinds: batch.kinds.clone() }));
        }
        let mut builder = FilterBuilder::new(passes);
        if columns.len() > 1 {
            builder = builder.optimize();
        }
        let predicate = builder.build();
        let columns = columns.iter().map(|column| predicate.filter(column)).collect::<Result<_, _>>().map_err(from_arrow)?;
        let kinds = match &batch.kinds {
            None => None,
            Some(RowKinds(kinds)) => {
                let kinds = predicate.filter(&UInt8Array::new(kinds.clone(), None)).map_err(from_arrow)?;
                Some(RowKinds(kinds.as_primitive::<UInt8Type>().values().clone()))
            }
        };
        Ok(Some(Batch { rows: record_batch(&self.used_schema, columns, passing)?, kinds }))
    }
}

/// Common expressions over `input`, compiled, and the schema with their columns behind those of `input`.
fn steps(commons: &[Common], input: &DFSchema) -> Result<(Vec<Step>, DFSchema)> {
    let mut schema = input.clone();
    let mut steps = Vec::with_capacity(commons.len());
    for common in commons {
        let expr = Compiled::of_its_type(&common.expr, &schema)?;
        let data_type = expr.expr.data_type(schema.as_arrow()).map_err(from_datafusion)?;
        let field = Arc::new(Field::new(&common.column.name, data_type, true));
        let column = DFSchema::new_with_metadata(vec![(common.column.relation.clone(), field.clone())], Default::default());
        schema = schema.join(&column.map_err(from_datafusion)?).map_err(from_datafusion)?;
        steps.push(Step { expr, field });
    }
    Ok((steps, schema))
}

/// `batch` with the columns of `steps`.
fn extend(steps: &[Step], batch: &RecordBatch, evaluate: Evaluate) -> Result<RecordBatch> {
    let mut extended = batch.clone();
    for step in steps {
        let mut columns = extended.columns().to_vec();
        columns.push(evaluate(&step.expr, &extended)?);
        let fields: Fields = extended.schema_ref().fields().iter().chain([&step.field]).cloned().collect();
        extended = record_batch(&Arc::new(Schema::new(fields)), columns, batch.num_rows())?;
    }
    Ok(extended)
}

impl Compiled {
    fn new(expr: &Expr, input: &DFSchema, target: &DataType, role: String) -> Result<Compiled> {
        let mut compiled = Compiled { role, ..Compiled::of_its_type(expr, input)? };
        let data_type = compiled.expr.data_type(input.as_arrow()).map_err(from_datafusion)?;
        compiled.cast_to = (data_type != *target).then(|| target.clone());
        Ok(compiled)
    }

    /// Without a cast.
    fn of_its_type(expr: &Expr, input: &DFSchema) -> Result<Compiled> {
        let written = shorten(&written_text(expr), EXPRESSION_CHARACTERS);
        let expr =
            create_physical_expr(expr, input, &ExecutionProps::new(), &PhysicalPlanningContext::default()).map_err(from_datafusion)?;
        let expr = fail_on_overflow(expr, input.as_arrow()).map_err(from_datafusion)?;
        Ok(Compiled { expr, cast_to: None, role: "expression".to_string(), written })
    }

    /// The expression's value for each row. An error names the expression and the first row that fails.
    fn evaluate(&self, batch: &RecordBatch) -> Result<ArrayRef> {
        self.evaluate_rows(batch).map_err(|error| self.locate(batch, error))
    }

    /// The same, of whose error nothing is shown.
    fn evaluate_shared(&self, batch: &RecordBatch) -> Result<ArrayRef> {
        self.evaluate_rows(batch).map_err(from_datafusion)
    }

    fn evaluate_rows(&self, batch: &RecordBatch) -> Result<ArrayRef, DataFusionError> {
        let array = self.expr.evaluate(batch)?.into_array_of_size(batch.num_rows())?;
        match &self.cast_to {
            None => Ok(array),
            Some(target) => {
                let options = CastOptions { safe: false, ..CastOptions::default() };
                Ok(cast_with_options(&array, target, &options)?)
            }
        }
    }

    /// Adds to `error` which expression failed on which row: the last of the shortest run of rows from the start that fails.
    fn locate(&self, batch: &RecordBatch, error: DataFusionError) -> Error {
        // `passing` rows from the start evaluate, `failing` rows don't.
        let (mut passing, mut failing) = (0, batch.num_rows());
        let mut failure = error;
        while failing - passing > 1 {
            let middle = passing + (failing - passing) / 2;
            match self.evaluate_rows(&batch.slice(0, middle)) {
                Ok(_) => passing = middle,
                Err(error) => {
                    failing = middle;
                    failure = error;
                }
            }
        }
        let row = passing;
        // On that row alone the error is certainly its own.
        if let Err(error) = self.evaluate_rows(&batch.slice(row, 1)) {
            failure = error;
        }
        let error = from_datafusion(failure);
        let mut context = error.context().map_or_else(String::new, |context| format!("{context}\n"));
        context.push_str(&format!("{}: {}", self.role, self.written));
        let mut detail = error.detail().map_or_else(String::new, |detail| format!("{detail} "));
        detail.push_str(&format!("The row is {}.", self.describe(batch, row)));
        error.with_context(context).with_detail(detail)
    }

    /// The row's values: those that the expression reads, then the others at hand, which tell the row from others.
    fn describe(&self, batch: &RecordBatch, row: usize) -> String {
        let read = datafusion::physical_expr::utils::collect_columns(&self.expr);
        let mut columns: Vec<usize> = read.iter().map(|column| column.index()).collect();
        columns.sort_unstable();
        columns.extend((0..batch.num_columns()).filter(|column| !read.iter().any(|read| read.index() == *column)));
        let schema = batch.schema_ref();
        describe_row(columns.iter().map(|column| (schema.field(*column).name().as_str(), batch.column(*column))), row)
    }
}

/// Makes every `+`, `-` and `*` fail on overflow, the minus sign too.
fn fail_on_overflow(expr: Arc<dyn PhysicalExpr>, schema: &Schema) -> Result<Arc<dyn PhysicalExpr>, DataFusionError> {
    let transformed = expr.transform_up(|expr| {
        if let Some(binary) = expr.downcast_ref::<BinaryExpr>() {
            if matches!(binary.op(), BinaryOperator::Plus | BinaryOperator::Minus | BinaryOperator::Multiply) {
                let checked = BinaryExpr::new(binary.left().clone(), *binary.op(), binary.right().clone()).with_fail_on_overflow(true);
                return Ok(Transformed::yes(Arc::new(checked) as Arc<dyn PhysicalExpr>));
            }
        } else if let Some(negative) = expr.downcast_ref::<NegativeExpr>() {
            let data_type = negative.arg().data_type(schema)?;
            if data_type.is_signed_integer() {
                let zero = Arc::new(Literal::new(ScalarValue::new_zero(&data_type)?));
                let checked = BinaryExpr::new(zero, BinaryOperator::Minus, negative.arg().clone()).with_fail_on_overflow(true);
                return Ok(Transformed::yes(Arc::new(checked) as Arc<dyn PhysicalExpr>));
            }
        }
        Ok(Transformed::no(expr))
    })?;
    Ok(transformed.data)
}

/// A batch of `rows` rows, also where it has no columns.
fn record_batch(schema: &SchemaRef, columns: Vec<ArrayRef>, rows: usize) -> Result<RecordBatch> {
    RecordBatch::try_new_with_options(schema.clone(), columns, &RecordBatchOptions::new().with_row_count(Some(rows)))
        .map_err(|error| Error::internal(format!("a projection's columns do not fit its schema: {error}")))
}

#[cfg(test)]
mod tests;
