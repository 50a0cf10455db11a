//! What must hold in every graph, and details that EXPLAIN does not show.

use std::collections::HashSet;

use datafusion::arrow::array::Int32Array;
use datafusion::arrow::datatypes::{DataType, TimeUnit};
use datafusion::logical_expr::physical_planning_context::PhysicalPlanningContext;
use datafusion::physical_expr::create_physical_expr;
use weir_catalog::ChangelogMode;

use crate::graph::{AggregateFunction, Distribution, NodeOp, StreamGraph};
use crate::planner::{Target, plan_stream};

fn plan(sql: &str) -> StreamGraph {
    let graph = super::plan(sql).unwrap_or_else(|e| panic!("{sql}: {e}"));
    check(&graph);
    graph
}

/// The contract between planner and engine.
fn check(graph: &StreamGraph) {
    let mut uids = HashSet::new();
    let mut scans = HashSet::new();
    for (id, node) in graph.nodes.iter().enumerate() {
        assert_eq!(node.id, id);
        let may_be_without_columns = matches!(node.op, NodeOp::ConnectorScan { .. } | NodeOp::Calc { .. } | NodeOp::Union);
        assert!(may_be_without_columns || !node.schema.fields().is_empty(), "{node:?} has no columns");
        let names: HashSet<&String> = node.schema.fields().iter().map(|field| field.name()).collect();
        assert_eq!(names.len(), node.schema.fields().len(), "{node:?} repeats a column name");
        for field in node.schema.fields() {
            assert!(
                !matches!(field.data_type(), DataType::Utf8View | DataType::LargeUtf8 | DataType::Timestamp(TimeUnit::Nanosecond, _)),
                "{field} has a type that no edge carries"
            );
        }
        if let Some(uid) = &node.uid {
            assert!(uids.insert(uid.clone()), "uid {uid} is used twice");
        }
        for edge in &node.inputs {
            assert!(edge.from < id, "an edge goes backwards");
            if let Distribution::Hash(columns) = &edge.distribution {
                assert!(columns.iter().all(|&column| column < graph.nodes[edge.from].schema.fields().len()));
            }
        }
        match &node.op {
            NodeOp::TableScan { table: object, projection }
            | NodeOp::ViewScan { view: object, projection }
            | NodeOp::ConnectorScan { table: object, projection } => {
                assert!(scans.insert(*object), "object {object} is scanned twice");
                assert_eq!(projection.len(), node.schema.fields().len());
            }
            NodeOp::Calc { input, filter, projection } => {
                let below = &graph.nodes[node.inputs[0].from].schema;
                assert_eq!(input.inner(), below);
                let types = projection
                    .iter()
                    .chain(filter)
                    .map(|expr| {
                        let physical = create_physical_expr(expr, input, &Default::default(), &PhysicalPlanningContext::default());
                        physical.and_then(|physical| physical.data_type(below)).unwrap_or_else(|e| panic!("{expr}: {e}"))
                    })
                    .collect::<Vec<_>>();
                for (data_type, field) in types.iter().zip(node.schema.fields()) {
                    assert_eq!(data_type, field.data_type(), "column {} of a calc", field.name());
                }
                if filter.is_some() {
                    assert_eq!(types.last(), Some(&DataType::Boolean));
                }
            }
            NodeOp::Aggregate { group_columns, calls, .. } => {
                let below = &graph.nodes[node.inputs[0].from].schema;
                assert_eq!(node.schema.fields().len(), group_columns + calls.len());
                assert_eq!(&node.schema.fields()[..*group_columns], &below.fields()[..*group_columns]);
                for (call, field) in calls.iter().zip(&node.schema.fields()[*group_columns..]) {
                    assert_eq!(&call.output_type, field.data_type());
                    if let Some(filter) = call.filter {
                        assert_eq!(below.field(filter).data_type(), &DataType::Boolean);
                    }
                }
            }
            NodeOp::Unnest { array, output, .. } => {
                let below = &graph.nodes[node.inputs[0].from].schema;
                let DataType::List(element) = below.field(*array).data_type() else { panic!("UNNEST of {}", below.field(*array)) };
                assert_eq!(output.len(), node.schema.fields().len());
                for (from, field) in output.iter().zip(node.schema.fields()) {
                    let ty = from.map_or(element.data_type(), |column| below.field(column).data_type());
                    assert_eq!(ty, field.data_type());
                }
            }
            NodeOp::Union => {
                for edge in &node.inputs {
                    assert_eq!(graph.nodes[edge.from].schema, node.schema);
                }
            }
            NodeOp::Values { rows } => assert_eq!(rows.schema(), node.schema),
            NodeOp::Materialize | NodeOp::Sink => {
                assert_eq!(id, graph.nodes.len() - 1);
                assert_eq!(graph.nodes[node.inputs[0].from].schema, node.schema);
            }
        }
    }
}

#[test]
fn the_graphs_of_all_explained_queries_keep_the_contract() {
    let file = include_str!("explain.txt");
    let mut queries = 0;
    for case in file.split("\n\n") {
        let query = case.split("\n----").next().unwrap_or_default().trim();
        if !query.is_empty() && !query.starts_with("--") {
            plan(query);
            queries += 1;
        }
    }
    assert!(queries >= 30);
}

#[test]
fn scans_read_what_is_read() {
    let projection = |sql: &str| match &plan(sql).nodes[0].op {
        NodeOp::TableScan { projection, .. } | NodeOp::ViewScan { projection, .. } | NodeOp::ConnectorScan { projection, .. } => {
            projection.clone()
        }
        other => panic!("{other:?}"),
    };
    assert_eq!(projection("SELECT max(price) AS p FROM bids GROUP BY auction"), [0, 2]);
    assert_eq!(projection("SELECT bidder FROM (SELECT * FROM bids WHERE channel = 'x') AS t"), [1, 3]);
    assert_eq!(projection("SELECT price AS p FROM bids UNION ALL SELECT bidder FROM bids"), [1, 2]);
    // Rows of a connector's table are counted without a column.
    assert_eq!(projection("SELECT count(*) AS n FROM bids"), [0; 0]);
    assert_eq!(projection("SELECT 1 AS one FROM bids"), [0; 0]);
    assert_eq!(projection("SELECT count(*) AS n FROM (SELECT price, bidder FROM bids) AS t"), [0; 0]);
    assert_eq!(projection("SELECT count(*) AS n FROM bids WHERE channel = 'x'"), [3]);
    assert_eq!(projection("SELECT count(*) AS n FROM (SELECT * FROM bids UNION ALL SELECT * FROM bids) AS t"), [0; 0]);
    // Others have a narrow one.
    assert_eq!(projection("SELECT count(*) AS n FROM users"), [0]);
    assert_eq!(projection("SELECT count(*) AS n FROM events"), [1]);
    // A call that nobody reads is not computed.
    assert_eq!(projection("SELECT n FROM (SELECT auction, count(*) AS n, max(price) AS p FROM bids GROUP BY auction) AS t"), [0]);
}

#[test]
fn keys_and_changelog_modes() {
    let root = |sql: &str| {
        let graph = plan(sql);
        (graph.root().upsert_key.clone(), graph.root().changelog)
    };
    assert_eq!(root("SELECT name, id FROM users"), (Some(vec![1]), ChangelogMode::Retract));
    assert_eq!(root("SELECT id + 0 AS id, name FROM users"), (None, ChangelogMode::Retract));
    assert_eq!(root("SELECT name FROM users"), (None, ChangelogMode::Retract));
    assert_eq!(root("SELECT auction FROM bids"), (None, ChangelogMode::Append));
    assert_eq!(root("SELECT DISTINCT auction FROM bids"), (Some(vec![0]), ChangelogMode::Append));
    assert_eq!(root("SELECT DISTINCT auction, n FROM hot"), (Some(vec![0, 1]), ChangelogMode::Retract));
    assert_eq!(root("SELECT count(*) AS n FROM bids"), (Some(vec![]), ChangelogMode::Retract));
    assert_eq!(root("SELECT count(*) AS n FROM bids GROUP BY auction"), (None, ChangelogMode::Retract));
    assert_eq!(root("SELECT count(*) AS n, auction FROM bids GROUP BY auction"), (Some(vec![1]), ChangelogMode::Retract));
    assert_eq!(root("SELECT auction, best FROM hot"), (Some(vec![0]), ChangelogMode::Retract));
    assert_eq!(root("SELECT auction FROM log UNION ALL SELECT bidder FROM bids"), (None, ChangelogMode::Append));
    assert_eq!(root("SELECT auction FROM log UNION ALL SELECT id FROM users"), (None, ChangelogMode::Retract));
    assert_eq!(root("SELECT 1 AS one"), (Some(vec![]), ChangelogMode::Append));
}

#[test]
fn an_edge_is_forward_only_where_rows_stand_right() {
    let into_root = |sql: &str| plan(sql).root().inputs[0].distribution.clone();
    assert_eq!(into_root("SELECT count(*) AS n, auction FROM bids GROUP BY auction"), Distribution::Forward);
    assert_eq!(into_root("SELECT bidder, count(*) AS n, auction FROM bids GROUP BY auction, bidder"), Distribution::Forward);
    assert_eq!(into_root("SELECT count(*) AS n FROM bids"), Distribution::Forward);
    assert_eq!(into_root("SELECT count(*) AS n FROM bids GROUP BY auction"), Distribution::Hash(vec![0]));
    assert_eq!(into_root("SELECT auction + 1 AS a, count(*) AS n FROM bids GROUP BY auction"), Distribution::Hash(vec![0, 1]));
    assert_eq!(into_root("SELECT name, id FROM users"), Distribution::Hash(vec![1]));
    assert_eq!(into_root("SELECT auction, price FROM bids"), Distribution::Hash(vec![0, 1]));

    // The second aggregate finds its rows in place: same columns, same order.
    let graph = plan(
        "SELECT auction, sum(n) AS s FROM (SELECT auction, count(*) AS n FROM bids GROUP BY auction UNION ALL SELECT auction, count(*) FROM log GROUP BY auction) AS t GROUP BY auction",
    );
    let last = graph.nodes.iter().rfind(|node| matches!(node.op, NodeOp::Aggregate { .. })).expect("there is one");
    assert_eq!(last.inputs[0].distribution, Distribution::Forward);
    // A part of the columns hashes differently.
    let graph = plan("SELECT auction, count(*) AS n FROM (SELECT DISTINCT auction, bidder FROM bids) AS t GROUP BY auction");
    let last = graph.nodes.iter().rfind(|node| matches!(node.op, NodeOp::Aggregate { .. })).expect("there is one");
    assert_eq!(last.inputs[0].distribution, Distribution::Hash(vec![0]));
}

#[test]
fn calls_have_the_types_of_the_engine() {
    let graph = plan("SELECT kind, sum(v) AS a, sum(w) AS b, sum(amount) AS c, min(kind) AS d, count(*) AS e FROM events GROUP BY kind");
    let aggregate = graph.node_by_uid("aggregate(kind)").expect("there is one");
    let NodeOp::Aggregate { calls, .. } = &aggregate.op else { panic!("{aggregate:?}") };
    let types: Vec<(AggregateFunction, &DataType)> = calls.iter().map(|call| (call.function, &call.output_type)).collect();
    assert!(types.contains(&(AggregateFunction::Sum, &DataType::Float64)));
    assert!(types.contains(&(AggregateFunction::Sum, &DataType::Decimal128(38, 2))));
    assert!(types.contains(&(AggregateFunction::Min, &DataType::Utf8)));
    assert!(types.contains(&(AggregateFunction::Count, &DataType::Int64)));
    assert_eq!(types.len(), 5);
}

#[test]
fn values_are_computed_when_planned() {
    let graph = plan("SELECT x FROM (VALUES (1 + 1), (NULL), (40 + 2)) AS t (x)");
    let NodeOp::Values { rows } = &graph.nodes[0].op else { panic!("{graph:?}") };
    let column = rows.column(0).as_any().downcast_ref::<Int32Array>().expect("int");
    assert_eq!(column.iter().collect::<Vec<_>>(), [Some(2), None, Some(42)]);
}

#[test]
fn a_sink_takes_what_comes() {
    let (logical, _) = super::bind("SELECT auction, count(*) AS n FROM bids GROUP BY auction").expect("it binds");
    let target = Target::Sink { name: "out".to_string(), columns: vec!["a".to_string(), "b".to_string()] };
    let graph = plan_stream(&logical, &target, &super::catalog()).expect("it is planned");
    check(&graph);
    assert!(matches!(graph.root().op, NodeOp::Sink));
    assert_eq!(graph.root().uid, None);
    assert_eq!(graph.root().schema.field(0).name(), "a");
    assert_eq!(graph.root().inputs[0].distribution, Distribution::Forward);
}

#[test]
fn names_of_a_result_are_unique() {
    let (logical, _) = super::bind("SELECT id, name FROM users").expect("it binds");
    let target = Target::MaterializedView { name: "v".to_string(), columns: vec!["x".to_string(), "x".to_string()] };
    let error = plan_stream(&logical, &target, &super::catalog()).expect_err("it is refused");
    assert_eq!(error.code().as_str(), "42701");
}

#[test]
fn a_query_of_many_levels_is_planned() {
    // Each level reads the one below three times: computed lazily, the text would be 3^12 times as long.
    let mut sql = "SELECT price AS x FROM bids".to_string();
    for _ in 0..12 {
        sql = format!("SELECT x + x * x AS x FROM ({sql}) AS t");
    }
    let graph = plan(&sql);
    assert_eq!(graph.nodes.iter().filter(|node| matches!(node.op, NodeOp::Calc { .. })).count(), 12);
}
