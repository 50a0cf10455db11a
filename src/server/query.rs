//! Batch queries: a bound plan over one consistent cut through views and tables, run by DataFusion.

use std::any::Any;
use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use arrow::array::RecordBatch;
use arrow::datatypes::SchemaRef;
use async_trait::async_trait;
use datafusion::catalog::{Session as DataFusionSession, TableProvider};
use datafusion::common::config::ConfigOptions;
use datafusion::common::tree_node::{Transformed, TreeNode, TreeNodeRecursion};
use datafusion::datasource::DefaultTableSource;
use datafusion::error::{DataFusionError, Result as DataFusionResult};
use datafusion::execution::disk_manager::{DiskManagerBuilder, DiskManagerMode};
use datafusion::execution::memory_pool::{MemoryConsumer, MemoryReservation};
use datafusion::execution::runtime_env::RuntimeEnvBuilder;
use datafusion::execution::session_state::SessionStateBuilder;
use datafusion::execution::{SendableRecordBatchStream, SessionState, TaskContext};
use datafusion::logical_expr::{Expr, LogicalPlan, Operator, TableProviderFilterPushDown, TableScan, TableSource, TableType};
use datafusion::physical_expr::expressions::{BinaryExpr, Column, Literal, NotExpr};
use datafusion::physical_expr_common::physical_expr::PhysicalExpr;
use datafusion::physical_optimizer::PhysicalOptimizerRule;
use datafusion::physical_optimizer::filter_pushdown::FilterPushdown;
use datafusion::physical_optimizer::optimizer::PhysicalOptimizer;
use datafusion::physical_optimizer::projection_pushdown::ProjectionPushdown;
use datafusion::physical_plan::filter::{FilterExec, FilterExecBuilder};
use datafusion::physical_plan::projection::remove_unnecessary_projections;
use datafusion::physical_plan::stream::RecordBatchReceiverStreamBuilder;
use datafusion::physical_plan::streaming::{PartitionStream, StreamingTableExec};
use datafusion::physical_plan::{EmptyRecordBatchStream, ExecutionPlan, execute_stream};
use datafusion::prelude::SessionConfig;
use futures::StreamExt;
use tokio::runtime::{Builder, Runtime};
use weir_catalog::object::schema_of;
use weir_catalog::{ChangelogMode, ConnectorTable, Error, JobKind, Object, ObjectId, Result, SqlState, StoredTable};
use weir_sql::binder::{CatalogSource, Series, SeriesSource, SystemSource, optimize_batch, series_values};

use super::lookup::KeyFilter;
use super::query_memory::{FRUGAL_ROWS, QueryMemory, bounded};
use super::system::SystemTables;
use crate::job::Engine;
use crate::job::engine::{QUERY_SHARE, ReadCut, STACK_BYTES};
use crate::job::stored_state::StoredState;
use crate::log::{ScanOptions, TablesSnapshot, Transaction};
use crate::operators::error::{from_arrow, from_datafusion, is_out_of_memory};
use crate::operators::materialize::{RowLayout, RowReader};
use crate::seams::files::FilesRef;
use crate::seams::spawn::{JoinHandle, Spawner};
use crate::sources::file::dead_letters;
use crate::sources::{SourceEvent, connector};
use crate::state::StateSnapshot;

/// Rows of a batch that a scan gives.
const SCAN_ROWS: usize = 8192;
/// Batches of a result that are made before the client asks for them.
const READY_BATCHES: usize = 2;
/// How often, and how long each time, a query that is run again waits for what its first try held.
const MOST_PAUSES: usize = 200;
const PAUSE: Duration = Duration::from_millis(5);
/// A sort keeps this part of the queries' memory for merging what it has spilled: one in so many.
const MERGE_SHARE: usize = 16;
/// The same where the memory is short.
const FRUGAL_MERGE_SHARE: usize = 256;
/// Files that it merges at a time.
const MOST_MERGED_FILES: usize = 16;
/// The most that it keeps for that, bytes.
const MOST_MERGE_BYTES: usize = 10 << 20;

/// The threads on which batch queries are planned and run. A batch that is dear to make holds up one of them, never the connections: whoever cancels its
/// query has the answer at once, and the query ends with that batch.
struct QueryThreads(Option<Runtime>);

impl QueryThreads {
    fn new() -> Result<QueryThreads> {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        Builder::new_multi_thread()
            .thread_name("weir-query")
            .worker_threads(cores)
            .thread_stack_size(STACK_BYTES)
            .enable_all()
            .build()
            .map(|runtime| QueryThreads(Some(runtime)))
            .map_err(|e| Error::io("start threads", &e))
    }

    fn spawner(&self) -> Result<Spawner> {
        let runtime = self.0.as_ref().ok_or_else(|| Error::internal("the threads of queries are gone"))?;
        Ok(Spawner::new(runtime.handle().clone()))
    }
}

impl Drop for QueryThreads {
    fn drop(&mut self) {
        if let Some(runtime) = self.0.take() {
            // Waiting for them is not allowed on every thread that may drop the last runner.
            runtime.shutdown_background();
        }
    }
}

/// DataFusion's rule of this purpose without its second half, which computes the parts of a join's condition that need one side alone for every row of that
/// side: also those that a CASE keeps from being computed where they fail.
#[derive(Debug)]
struct FewerProjections;

impl PhysicalOptimizerRule for FewerProjections {
    fn optimize(&self, plan: Arc<dyn ExecutionPlan>, _config: &ConfigOptions) -> DataFusionResult<Arc<dyn ExecutionPlan>> {
        plan.transform_down(remove_unnecessary_projections).map(|transformed| transformed.data)
    }

    fn name(&self) -> &str {
        "FewerProjections"
    }

    fn schema_check(&self) -> bool {
        true
    }
}

/// Filters without the equalities of a column with something computed. DataFusion takes both sides for one sort key, and does not find it again behind a
/// projection that passes only the column on: a plan with a window is refused then. From `NOT (a <> b)` it draws no such conclusion.
#[derive(Debug)]
struct OpaqueEqualities;

impl OpaqueEqualities {
    fn hidden(expr: Arc<dyn PhysicalExpr>) -> DataFusionResult<Transformed<Arc<dyn PhysicalExpr>>> {
        let Some(binary) = expr.downcast_ref::<BinaryExpr>().filter(|binary| *binary.op() == Operator::Eq) else {
            return Ok(Transformed::no(expr));
        };
        let plain = |side: &Arc<dyn PhysicalExpr>| side.downcast_ref::<Column>().is_some();
        let constant = |side: &Arc<dyn PhysicalExpr>| side.downcast_ref::<Literal>().is_some();
        let (left, right) = (binary.left(), binary.right());
        if plain(left) && plain(right) || constant(left) || constant(right) {
            return Ok(Transformed::no(expr));
        }
        let differ: Arc<dyn PhysicalExpr> = Arc::new(BinaryExpr::new(left.clone(), Operator::NotEq, right.clone()));
        Ok(Transformed::yes(Arc::new(NotExpr::new(differ))))
    }
}

impl PhysicalOptimizerRule for OpaqueEqualities {
    fn optimize(&self, plan: Arc<dyn ExecutionPlan>, _config: &ConfigOptions) -> DataFusionResult<Arc<dyn ExecutionPlan>> {
        let opaque = plan.transform_up(|node| {
            let Some(filter) = node.downcast_ref::<FilterExec>() else { return Ok(Transformed::no(node)) };
            let predicate = filter.predicate().clone().transform_down(OpaqueEqualities::hidden)?;
            if !predicate.transformed {
                return Ok(Transformed::no(node));
            }
            let filter = FilterExecBuilder::from(filter).with_predicate(predicate.data).build()?;
            Ok(Transformed::yes(Arc::new(filter) as Arc<dyn ExecutionPlan>))
        });
        opaque.map(|opaque| opaque.data)
    }

    fn name(&self) -> &str {
        "OpaqueEqualities"
    }

    fn schema_check(&self) -> bool {
        true
    }
}

/// Ends a task with what waits for it.
struct Waited<T>(JoinHandle<T>);

impl<T> Drop for Waited<T> {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// Runs batch queries.
#[derive(Clone)]
pub struct QueryRunner {
    engine: Arc<Engine>,
    state: SessionState,
    /// As `state`, for plans in which nothing is dealt out.
    undealt: SessionState,
    /// As `state`, for queries that the memory is too short for otherwise: what can't go to disk is done in another way, in small batches.
    frugal: SessionState,
    threads: Arc<QueryThreads>,
}

impl QueryRunner {
    /// A runner whose queries may hold a fifth of the engine's memory; they spill to disk beyond that.
    pub fn new(engine: Arc<Engine>) -> Result<QueryRunner> {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let memory = engine.settings().memory / QUERY_SHARE;
        // Dealing a scan's batches out in turn has shown two readers of one partition under nested cross joins; what is grouped or joined is dealt out by hash.
        let mut config = SessionConfig::new()
            .with_target_partitions(cores)
            .with_batch_size(SCAN_ROWS)
            .with_round_robin_repartition(false)
            .with_sort_spill_reservation_bytes((memory / MERGE_SHARE).min(MOST_MERGE_BYTES));
        // A logical plan knows that `a IS TRUE` is never NULL, a physical one does not; that is no error.
        config.options_mut().execution.skip_physical_aggregate_schema_check = true;
        let mut disk = DiskManagerBuilder::default()
            .with_mode(DiskManagerMode::Directories(vec![engine.query_scratch()?]))
            // The disk itself is the limit, with an error of its own.
            .with_max_temp_directory_size(u64::MAX);
        // A merge of all files at a time takes what others need.
        disk.set_max_spill_merge_fan_in(MOST_MERGED_FILES);
        let runtime = RuntimeEnvBuilder::new()
            .with_memory_pool(Arc::new(QueryMemory::new(memory, engine.memory().charge())))
            .with_disk_manager_builder(disk)
            .build_arc()
            .map_err(from_datafusion)?;
        // What moves filters once more, after the optimiser of logical plans, makes one of two that stand one over the other: the upper one then fails on rows
        // that the lower one drops. No source of ours takes filters from it.
        let rules = PhysicalOptimizer::new().rules.into_iter().filter(|rule| rule.name() != FilterPushdown::new().name());
        let rules = rules.map(|rule| -> Arc<dyn PhysicalOptimizerRule + Send + Sync> {
            if rule.name() == ProjectionPushdown::new().name() { Arc::new(FewerProjections) } else { rule }
        });
        let rules = std::iter::once(Arc::new(OpaqueEqualities) as Arc<dyn PhysicalOptimizerRule + Send + Sync>).chain(rules);
        let state = SessionStateBuilder::new()
            .with_config(config)
            .with_runtime_env(runtime)
            .with_default_features()
            .with_physical_optimizer_rules(rules.collect())
            .build();
        let with = |config: SessionConfig| SessionStateBuilder::new_from_existing(state.clone()).with_config(config).build();
        let undealt = with(state.config().clone().with_target_partitions(1));
        // Joins by sorting are dealt out, so that there are two partitions at least.
        let mut config = state.config().clone().with_target_partitions(2).with_batch_size(FRUGAL_ROWS);
        config = config.with_sort_spill_reservation_bytes((memory / FRUGAL_MERGE_SHARE).min(MOST_MERGE_BYTES));
        config.options_mut().optimizer.prefer_hash_join = false;
        let frugal = with(config);
        Ok(QueryRunner { engine, state, undealt, frugal, threads: Arc::new(QueryThreads::new()?) })
    }

    /// Counts what a statement holds itself of a query's rows.
    pub fn reserve(&self, what: &str) -> MemoryReservation {
        MemoryConsumer::new(what).register(&self.state.runtime_env().memory_pool)
    }

    /// The cut that `plan` reads: all views in it as of one barrier.
    pub async fn cut(&self, plan: &LogicalPlan, transaction: Option<&Transaction>, timeout: Duration) -> Result<ReadCut> {
        let mut views = Vec::new();
        let mut with_tables = false;
        for object in scanned_objects(plan)? {
            with_tables |= matches!(object.as_ref(), Object::StoredTable(_));
            if let Object::Job(job) = object.as_ref() {
                match job.kind {
                    JobKind::MaterializedView { .. } => views.push(job.id),
                    JobKind::Sink { .. } | JobKind::Insert { .. } => {
                        return Err(Error::new(
                            weir_catalog::SqlState::WRONG_OBJECT_TYPE,
                            format!("cannot read from {} \"{}\"", object.kind(), job.name),
                        ));
                    }
                }
            }
        }
        self.engine.read(&views, with_tables, transaction, timeout).await
    }

    /// Runs `plan` over `cut`, on threads of its own; dropping what this returns ends it.
    pub async fn run(&self, plan: &LogicalPlan, cut: &ReadCut, system: &SystemTables) -> Result<SendableRecordBatchStream> {
        if scans_system_views(plan)? {
            self.engine.show().await;
        }
        let plan = self.connect(plan.clone(), cut, system)?;
        let runner = self.clone();
        let mut started = Waited(self.threads.spawner()?.spawn(async move { runner.start(plan).await }));
        match (&mut started.0).await {
            Ok(rows) => rows,
            Err(failed) => match failed.try_into_panic() {
                Ok(panic) => std::panic::resume_unwind(panic),
                Err(_) => Err(Error::new(SqlState::ADMIN_SHUTDOWN, "the server is shutting down")),
            },
        }
    }

    /// Plans `plan` and starts it, on the runtime that this is called on.
    ///
    /// Where the memory is too short for it before it has given a row, it is started once more in a way that needs less.
    async fn start(&self, plan: LogicalPlan) -> Result<SendableRecordBatchStream> {
        let plan = optimize_batch(plan)?;
        let physical = match self.state.query_planner().create_physical_plan(&plan, &self.state).await {
            Ok(physical) => physical,
            // DataFusion's last check of a plan finds some that deal rows out in a way that an operator does not expect. With one partition nothing is dealt.
            Err(error) => {
                self.state.query_planner().create_physical_plan(&plan, &self.undealt).await.map_err(|_| from_datafusion(error))?
            }
        };
        let mut physical = bounded(physical, false)?;
        let mut rows = execute_stream(physical.clone(), self.state.task_ctx()).map_err(from_datafusion)?;
        let mut forwarding = RecordBatchReceiverStreamBuilder::new(rows.schema(), READY_BATCHES);
        let (forwarded, frugal) = (forwarding.tx(), self.frugal.clone());
        forwarding.spawn(async move {
            let mut first = rows.next().await;
            if matches!(&first, Some(Err(error)) if is_out_of_memory(error)) {
                drop(rows);
                // Of a plan that can't be made so the first error is told.
                match frugal
                    .query_planner()
                    .create_physical_plan(&plan, &frugal)
                    .await
                    .map_err(from_datafusion)
                    .and_then(|plan| bounded(plan, true))
                {
                    Ok(again) => {
                        physical = again;
                        // The first try's tasks let go of their memory when they are taken down, which is beside this one.
                        let pool = &frugal.runtime_env().memory_pool;
                        for _ in 0..MOST_PAUSES {
                            if pool.reserved() == 0 {
                                break;
                            }
                            tokio::time::sleep(PAUSE).await;
                        }
                        rows = execute_stream(physical.clone(), frugal.task_ctx())?;
                        first = rows.next().await;
                    }
                    Err(_) => rows = Box::pin(EmptyRecordBatchStream::new(physical.schema())),
                }
            }
            while let Some(batch) = first {
                // Whoever is not there any more has dropped the stream, and with it this task.
                let is_last = batch.is_err();
                if forwarded.send(batch).await.is_err() || is_last {
                    break;
                }
                first = rows.next().await;
            }
            // What the plan counts is held until here.
            drop(physical);
            Ok(())
        });
        Ok(forwarding.build())
    }

    /// Puts the rows of `cut` where the plan names tables and views.
    fn connect(&self, plan: LogicalPlan, cut: &ReadCut, system: &SystemTables) -> Result<LogicalPlan> {
        let now_us = self.engine.clock().now_us();
        let mut providers: BTreeMap<ObjectId, Arc<dyn TableProvider>> = BTreeMap::new();
        let connected = plan.transform_up_with_subqueries(|node| {
            let LogicalPlan::TableScan(scan) = &node else { return Ok(Transformed::no(node)) };
            let source = scan.source.as_ref() as &dyn Any;
            let provider: Arc<dyn TableProvider> = if let Some(source) = source.downcast_ref::<CatalogSource>() {
                match providers.get(&source.object.id()) {
                    Some(provider) => provider.clone(),
                    None => {
                        let provider = provider(&source.object, cut, now_us, self.engine.settings().max_row_bytes).map_err(external)?;
                        providers.insert(source.object.id(), provider.clone());
                        provider
                    }
                }
            } else if let Some(table) =
                source.downcast_ref::<SystemSource>().and_then(|source| source.name.strip_suffix(dead_letters::SUFFIX))
            {
                self.dead_letters(table).map_err(external)?
            } else if let Some(source) = source.downcast_ref::<SystemSource>() {
                system.provider(&source.name, &self.engine).map_err(external)?
            } else if let Some(source) = source.downcast_ref::<SeriesSource>() {
                let schema = source.schema();
                let part = SeriesPart { series: source.series.clone(), schema: schema.clone() };
                Arc::new(CutTable { schema, parts: vec![Arc::new(part)], key: None })
            } else {
                return Ok(Transformed::no(node));
            };
            let scan = TableScan { source: Arc::new(DefaultTableSource::new(provider)), ..scan.clone() };
            Ok(Transformed::yes(LogicalPlan::TableScan(scan)))
        });
        connected.map(|connected| connected.data).map_err(from_datafusion)
    }

    /// The records of a connector table that could not be read.
    pub(super) fn dead_letters(&self, table: &str) -> Result<Arc<dyn TableProvider>> {
        let catalog = self.engine.catalog();
        match catalog.get(table).map(Arc::as_ref) {
            Some(Object::ConnectorTable(table)) => {
                let (files, root) = self.engine.dead_letters();
                let part = DeadLetterPart { files, folder: dead_letters::folder(&root, table.id) };
                let schema = weir_catalog::object::schema_of(&dead_letters::columns());
                Ok(Arc::new(CutTable { schema, parts: vec![Arc::new(part)], key: None }))
            }
            _ => {
                let name = format!("{table}{}", dead_letters::SUFFIX);
                Err(Error::new(SqlState::UNDEFINED_TABLE, format!("relation \"{name}\" does not exist"))
                    .with_detail("Only tables with a connector have bad records."))
            }
        }
    }
}

fn external(error: Error) -> DataFusionError {
    DataFusionError::External(Box::new(error))
}

fn scans_system_views(plan: &LogicalPlan) -> Result<bool> {
    let mut found = false;
    plan.apply_with_subqueries(|node| {
        found |= matches!(node, LogicalPlan::TableScan(scan) if (scan.source.as_ref() as &dyn Any).is::<SystemSource>());
        Ok(if found { TreeNodeRecursion::Stop } else { TreeNodeRecursion::Continue })
    })
    .map_err(from_datafusion)?;
    Ok(found)
}

/// The tables and views that `plan` scans, subqueries included.
pub fn scanned_objects(plan: &LogicalPlan) -> Result<Vec<Arc<Object>>> {
    let mut objects: BTreeMap<ObjectId, Arc<Object>> = BTreeMap::new();
    plan.apply_with_subqueries(|node| {
        if let LogicalPlan::TableScan(scan) = node
            && let Some(source) = (scan.source.as_ref() as &dyn Any).downcast_ref::<CatalogSource>()
        {
            objects.insert(source.object.id(), source.object.clone());
        }
        Ok(TreeNodeRecursion::Continue)
    })
    .map_err(from_datafusion)?;
    Ok(objects.into_values().collect())
}

/// Errors with `0A000` for what a batch query can't read: a table whose rows never end.
pub(super) fn check_readable(object: &Object) -> Result<()> {
    match object {
        Object::ConnectorTable(table) if !crate::sources::connector::is_bounded(table)? => {
            Err(Error::unsupported(format!("cannot read from unbounded table \"{}\" directly", table.name))
                .with_hint("Create a materialized view over it and read that."))
        }
        Object::ConnectorTable(table) if table.changelog() != ChangelogMode::Append => {
            Err(Error::unsupported(format!("cannot read the changes of table \"{}\" as rows", table.name))
                .with_hint("Create a materialized view over it and read that."))
        }
        _ => Ok(()),
    }
}

/// The rows of `object` as of `cut`, or those that its connector has, at `now_us`.
fn provider(object: &Arc<Object>, cut: &ReadCut, now_us: i64, max_row_bytes: usize) -> Result<Arc<dyn TableProvider>> {
    let schema = weir_catalog::object::schema_of(object.columns());
    let mut key = None;
    let parts: Vec<Arc<dyn Part>> = match object.as_ref() {
        Object::StoredTable(table) => {
            key = table.primary_key.clone();
            vec![Arc::new(TablePart { table: table.clone(), snapshot: cut.tables.clone(), row_key: false })]
        }
        Object::Job(job) => {
            let (handle, snapshots) = cut.views.get(&job.id).ok_or_else(|| Error::internal("a view is not in the statement's cut"))?;
            key = handle.layout.key().map(<[usize]>::to_vec);
            snapshots
                .iter()
                .map(|snapshot| Arc::new(ViewPart { layout: handle.layout.clone(), snapshot: snapshot.clone() }) as Arc<dyn Part>)
                .collect()
        }
        Object::ConnectorTable(table) => {
            check_readable(object)?;
            vec![Arc::new(ConnectorPart { table: table.clone(), now_us, max_row_bytes })]
        }
        Object::View(view) => return Err(Error::internal(format!("view {} was not expanded", view.name))),
    };
    Ok(Arc::new(CutTable { schema, parts, key }))
}

/// A stored table as of a snapshot, with the hidden row key column that UPDATE and DELETE name rows by.
pub fn table_with_row_keys(table: &StoredTable, snapshot: TablesSnapshot) -> Result<Arc<dyn TableProvider>> {
    let options = ScanOptions { row_key: true, ..ScanOptions::default() };
    let schema = snapshot.scan(table, options)?.schema();
    let key = table.primary_key.clone();
    Ok(Arc::new(CutTable { schema, parts: vec![Arc::new(TablePart { table: table.clone(), snapshot, row_key: true })], key }))
}

/// A part of a table that can be read on its own.
trait Part: Send + Sync + fmt::Debug {
    /// Gives `each` the rows of the columns `projection`, batch by batch, until it returns false. Rows that `keys` leaves out may be left out. Waits for disk.
    fn read(&self, projection: &[usize], keys: &KeyFilter, each: &mut dyn FnMut(RecordBatch) -> bool) -> Result<()>;
}

#[derive(Debug)]
struct TablePart {
    table: StoredTable,
    snapshot: TablesSnapshot,
    row_key: bool,
}

impl Part for TablePart {
    fn read(&self, projection: &[usize], keys: &KeyFilter, each: &mut dyn FnMut(RecordBatch) -> bool) -> Result<()> {
        let mut options = if self.row_key {
            ScanOptions { row_key: true, ..ScanOptions::default() }
        } else {
            ScanOptions { projection: Some(projection.to_vec()), ..ScanOptions::default() }
        };
        let project = |batch: RecordBatch| {
            if self.row_key { batch.project(projection).map_err(from_arrow) } else { Ok(batch) }
        };
        match keys {
            KeyFilter::Keys(keys) => {
                each(project(self.snapshot.lookup(&self.table, keys, options)?)?);
                return Ok(());
            }
            KeyFilter::Prefix(prefix) => options.key_prefix = prefix.clone(),
            KeyFilter::All => {}
        }
        for batch in self.snapshot.scan(&self.table, options)? {
            if !each(project(batch?)?) {
                break;
            }
        }
        Ok(())
    }
}

struct ViewPart {
    layout: Arc<RowLayout>,
    snapshot: Arc<dyn StateSnapshot>,
}

impl fmt::Debug for ViewPart {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ViewPart")
    }
}

impl Part for ViewPart {
    fn read(&self, projection: &[usize], keys: &KeyFilter, each: &mut dyn FnMut(RecordBatch) -> bool) -> Result<()> {
        if let KeyFilter::Keys(keys) = keys {
            let rows = self.layout.lookup(self.snapshot.as_ref(), keys)?;
            each(rows.project(projection).map_err(from_arrow)?);
            return Ok(());
        }
        let mut rows = RowReader::new(self.layout.clone(), self.snapshot.clone());
        while let Some(batch) = rows.next_batch(SCAN_ROWS)? {
            if !each(batch.project(projection).map_err(from_arrow)?) {
                break;
            }
        }
        Ok(())
    }
}

#[derive(Debug)]
struct DeadLetterPart {
    files: FilesRef,
    folder: PathBuf,
}

impl Part for DeadLetterPart {
    fn read(&self, projection: &[usize], _keys: &KeyFilter, each: &mut dyn FnMut(RecordBatch) -> bool) -> Result<()> {
        dead_letters::read(&self.files, &self.folder, projection, each)
    }
}

/// A state of an operator, as it was stored.
pub(super) fn state_table(state: Arc<StoredState>) -> Arc<dyn TableProvider> {
    let parts = (0..state.parts()).map(|part| Arc::new(StatePart { state: state.clone(), part }) as Arc<dyn Part>).collect();
    Arc::new(CutTable { schema: state.schema(), parts, key: None })
}

#[derive(Debug)]
struct StatePart {
    state: Arc<StoredState>,
    part: usize,
}

impl Part for StatePart {
    fn read(&self, projection: &[usize], _keys: &KeyFilter, each: &mut dyn FnMut(RecordBatch) -> bool) -> Result<()> {
        self.state.read(self.part, SCAN_ROWS, &mut |batch| Ok(each(batch.project(projection).map_err(from_arrow)?)))
    }
}

/// The values of `generate_series(...)`.
#[derive(Debug)]
struct SeriesPart {
    series: Series,
    schema: SchemaRef,
}

impl Part for SeriesPart {
    fn read(&self, projection: &[usize], _keys: &KeyFilter, each: &mut dyn FnMut(RecordBatch) -> bool) -> Result<()> {
        let mut series = self.series.clone();
        loop {
            let values: Vec<i64> = series.by_ref().take(SCAN_ROWS).collect();
            if values.is_empty() {
                return Ok(());
            }
            let values = series_values(values, self.schema.field(0).data_type())?;
            let batch = RecordBatch::try_new(self.schema.clone(), vec![values]).map_err(from_arrow)?;
            if !each(batch.project(projection).map_err(from_arrow)?) {
                return Ok(());
            }
        }
    }
}

#[derive(Debug)]
struct ConnectorPart {
    table: ConnectorTable,
    /// The time of the statement, in microseconds since 1970.
    now_us: i64,
    max_row_bytes: usize,
}

impl Part for ConnectorPart {
    fn read(&self, projection: &[usize], _keys: &KeyFilter, each: &mut dyn FnMut(RecordBatch) -> bool) -> Result<()> {
        let (statement_us, max_row_bytes) = (Some(self.now_us), self.max_row_bytes);
        let context = crate::sources::SourceContext { statement_us, max_row_bytes, ..crate::sources::SourceContext::default() };
        let mut sources = connector::open_sources(&self.table, projection, 1, None, &context)?;
        let source = sources.first_mut().ok_or_else(|| Error::internal("a connector table has no source"))?;
        let waits = connector::waits_for_others(&self.table)?;
        let none = RecordBatch::new_empty(Arc::new(schema_of(&self.table.columns).project(projection).map_err(from_arrow)?));
        // A bounded read waits for no rate: between the first poll, from which rates count, and the next the whole of time passes.
        let mut now_us = i64::MIN;
        loop {
            let polled = source.poll(SCAN_ROWS, now_us)?;
            let first = std::mem::replace(&mut now_us, i64::MAX) == i64::MIN;
            match polled {
                SourceEvent::Batch(batch) => {
                    if !each(batch.rows) {
                        return Ok(());
                    }
                }
                SourceEvent::End => return Ok(()),
                SourceEvent::Wait(_) if first => {}
                SourceEvent::Wait(us) if waits => {
                    // Whoever asked may have gone meanwhile: no rows tell that as well as rows do.
                    if !each(none.clone()) {
                        return Ok(());
                    }
                    std::thread::sleep(Duration::from_micros(us));
                }
                SourceEvent::Wait(_) => return Err(Error::internal("a bounded source waits although all time has passed")),
            }
        }
    }
}

/// A table or view as of a cut.
#[derive(Debug)]
struct CutTable {
    schema: SchemaRef,
    parts: Vec<Arc<dyn Part>>,
    /// The columns by which its rows can be looked up.
    key: Option<Vec<usize>>,
}

#[async_trait]
impl TableProvider for CutTable {
    fn schema(&self) -> SchemaRef {
        self.schema.clone()
    }

    fn table_type(&self) -> TableType {
        TableType::Base
    }

    fn supports_filters_pushdown(&self, filters: &[&Expr]) -> DataFusionResult<Vec<TableProviderFilterPushDown>> {
        let support = |filter: &&Expr| match &self.key {
            Some(key) if KeyFilter::can_use(filter, key, &self.schema) => TableProviderFilterPushDown::Inexact,
            _ => TableProviderFilterPushDown::Unsupported,
        };
        Ok(filters.iter().map(support).collect())
    }

    async fn scan(
        &self,
        _state: &dyn DataFusionSession,
        projection: Option<&Vec<usize>>,
        filters: &[Expr],
        limit: Option<usize>,
    ) -> DataFusionResult<Arc<dyn ExecutionPlan>> {
        let columns: Vec<usize> = projection.cloned().unwrap_or_else(|| (0..self.schema.fields().len()).collect());
        let schema = Arc::new(self.schema.project(&columns)?);
        let keys = match &self.key {
            Some(key) => KeyFilter::new(filters, key, &self.schema).map_err(external)?,
            None => KeyFilter::All,
        };
        let partitions: Vec<Arc<dyn PartitionStream>> = self
            .parts
            .iter()
            .map(|part| {
                let stream = CutStream { schema: schema.clone(), part: part.clone(), projection: columns.clone(), keys: keys.clone() };
                Arc::new(stream) as Arc<dyn PartitionStream>
            })
            .collect();
        Ok(Arc::new(StreamingTableExec::try_new(schema, partitions, None, None, false, limit)?))
    }
}

#[derive(Debug)]
struct CutStream {
    schema: SchemaRef,
    part: Arc<dyn Part>,
    projection: Vec<usize>,
    keys: KeyFilter,
}

impl PartitionStream for CutStream {
    fn schema(&self) -> &SchemaRef {
        &self.schema
    }

    fn execute(&self, _context: Arc<TaskContext>) -> SendableRecordBatchStream {
        let mut builder = RecordBatchReceiverStreamBuilder::new(self.schema.clone(), 2);
        let sender = builder.tx();
        let (part, projection, keys) = (self.part.clone(), self.projection.clone(), self.keys.clone());
        builder
            .spawn_blocking(move || part.read(&projection, &keys, &mut |batch| sender.blocking_send(Ok(batch)).is_ok()).map_err(external));
        builder.build()
    }
}
