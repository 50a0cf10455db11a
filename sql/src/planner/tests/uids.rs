//! A derived uid stays where it is when something else of the query changes.

use crate::graph::{NodeOp, StreamGraph};
use crate::planner::operators;

/// The uids of the operators with keyed state below the root, in the order of the graph.
fn uids(sql: &str) -> Vec<String> {
    let graph = plan(sql);
    graph.nodes.iter().filter(|node| matches!(node.op, NodeOp::Aggregate { .. })).filter_map(|node| node.uid.clone()).collect()
}

fn plan(sql: &str) -> StreamGraph {
    super::plan(sql).unwrap_or_else(|e| panic!("{sql}: {e}"))
}

const COUNTS: &str = "SELECT auction, count(*) AS n, max(price) AS best FROM bids GROUP BY auction";

#[test]
fn derived_uids_say_role_and_keys() {
    assert_eq!(uids(COUNTS), ["aggregate(auction)"]);
    assert_eq!(uids("SELECT count(*) AS n FROM bids"), ["aggregate()"]);
    assert_eq!(uids("SELECT DISTINCT channel, auction FROM bids"), ["distinct(auction, channel)"]);
    assert_eq!(uids("SELECT auction FROM bids UNION SELECT id FROM users"), ["distinct(auction)"]);
    assert_eq!(uids("SELECT count(*) AS n FROM bids GROUP BY lower(channel), price / 10"), ["aggregate(lower(channel), price / 10)"]);
}

#[test]
fn order_names_and_other_columns_leave_uids_alone() {
    for sql in [
        "SELECT max(price) AS best, count(*) AS n, auction FROM bids GROUP BY auction",
        "SELECT a.auction AS x, count(*) AS y FROM bids AS a GROUP BY a.auction",
        "SELECT auction, count(*) AS n FROM bids WHERE price > 5 AND channel <> 'x' GROUP BY auction",
        "SELECT auction + 1 AS a, sum(price) AS s FROM bids GROUP BY auction HAVING count(*) > 3",
        "SELECT x, count(*) AS n FROM (SELECT auction AS x, lower(channel) AS c FROM bids) AS t GROUP BY x",
        "WITH t AS (SELECT bidder, auction AS a FROM bids) SELECT count(*) AS n FROM t GROUP BY a",
        "SELECT auction, count(*) AS n FROM bids GROUP BY auction, auction",
    ] {
        assert_eq!(uids(sql), ["aggregate(auction)"], "{sql}");
    }
    assert_eq!(
        uids("SELECT count(*) AS n FROM bids GROUP BY bidder, auction"),
        uids("SELECT count(*) AS n FROM bids GROUP BY auction, bidder")
    );
}

#[test]
fn a_union_branch_more_or_less_leaves_uids_alone() {
    let more = "SELECT auction, count(*) AS n, max(price) AS best FROM bids GROUP BY auction
         UNION ALL SELECT id, count(*), max(age) FROM users GROUP BY id UNION ALL SELECT auction, price, 1 FROM log";
    assert_eq!(uids(more), ["aggregate(auction)", "aggregate(id)"]);
    let over = |branches: &str| format!("SELECT auction, sum(price) AS s FROM ({branches}) AS t GROUP BY auction");
    let one = "SELECT auction, price FROM bids";
    let two = "SELECT auction, price FROM bids UNION ALL SELECT auction, price FROM log";
    assert_eq!(uids(&over(one)), ["aggregate(auction)"]);
    assert_eq!(uids(&over(two)), ["aggregate(auction)"]);
}

#[test]
fn equal_derived_uids_are_numbered_and_marked() {
    let graph = plan(&format!("{COUNTS} UNION ALL SELECT auction, count(*), 0 FROM bids WHERE price > 3 GROUP BY auction"));
    let aggregates: Vec<(Option<&str>, bool)> = graph
        .nodes
        .iter()
        .filter(|node| matches!(node.op, NodeOp::Aggregate { .. }))
        .map(|node| (node.uid.as_deref(), node.uid_positional))
        .collect();
    assert_eq!(aggregates, [(Some("aggregate(auction)"), true), (Some("aggregate(auction)#2"), true)]);
}

#[test]
fn what_is_named_twice_is_kept_once() {
    let sql = "WITH t AS (SELECT auction, count(*) AS n, max(price) AS best FROM bids GROUP BY auction)
         SELECT n AS x FROM t UNION ALL SELECT best FROM t WHERE auction > 3";
    assert_eq!(uids(sql), ["aggregate(auction)"]);
    assert!(!plan(sql).node_by_uid("aggregate(auction)").expect("there is one").uid_positional);
}

#[test]
fn hints_name_the_operators_of_their_block_only() {
    assert_eq!(uids("SELECT /*+ uid('x') */ auction, count(*) AS n FROM bids GROUP BY auction"), ["x"]);
    assert_eq!(uids("SELECT /*+ uid('x') */ DISTINCT count(*) AS n FROM bids GROUP BY auction"), ["x/aggregate", "x"]);
    assert_eq!(
        uids("SELECT /*+ uid('x') */ max(n) AS m FROM (SELECT auction, count(*) AS n FROM bids GROUP BY auction) AS t"),
        ["aggregate(auction)", "x"]
    );
    assert_eq!(
        uids("SELECT max(n) AS m FROM (SELECT /*+ uid('Mixed.Case') */ auction, count(*) AS n FROM bids GROUP BY auction) AS t"),
        ["Mixed.Case", "aggregate()"]
    );
    assert_eq!(
        uids(
            "SELECT /*+ uid('x') */ auction, count(*) AS n FROM bids GROUP BY auction UNION ALL SELECT id, count(*) FROM users GROUP BY id"
        ),
        ["x", "aggregate(id)"]
    );
}

#[test]
fn a_hint_changes_neither_rows_nor_names() {
    let (plain, hinted) = (plan(COUNTS), plan(&COUNTS.replace("SELECT", "SELECT /*+ uid('x') */")));
    assert_eq!(plain.root().schema, hinted.root().schema);
    assert_eq!(plain.nodes.len(), hinted.nodes.len());
}

#[test]
fn descriptors_do_not_depend_on_how_the_query_is_written() {
    let written = operators(&plan("SELECT max(price) AS b, auction AS a, count(*) AS c FROM bids GROUP BY auction"));
    let otherwise =
        operators(&plan("SELECT auction AS a, count(*) AS c, max(price) AS b FROM bids AS t WHERE price > 3 GROUP BY t.auction"));
    let aggregate = |operators: &[weir_catalog::OperatorDescriptor]| operators.iter().find(|o| o.uid == "aggregate(auction)").cloned();
    assert_eq!(aggregate(&written), aggregate(&otherwise));
    let descriptor = aggregate(&written).expect("there is one");
    assert_eq!(descriptor.operator, "aggregate");
    assert_eq!(descriptor.key, [("auction".to_string(), "bigint".to_string())]);
    assert_eq!(descriptor.value, [("count(*)".to_string(), "bigint".to_string()), ("max(price)".to_string(), "bigint".to_string())]);
    let uids: Vec<&str> = written.iter().map(|operator| operator.uid.as_str()).collect();
    assert_eq!(uids, ["source(bids)", "aggregate(auction)", "v/rows"]);
    let rows = &written[2];
    assert_eq!((rows.operator.as_str(), rows.key.len(), rows.value.len()), ("rows", 1, 2));
}

/// Over a UNION ALL an operator is described over each branch alone, as it is over that branch where there is no other.
#[test]
fn an_operator_over_branches_is_described_over_each() {
    let over = |branches: &str| format!("SELECT auction, sum(price) AS s FROM ({branches}) AS t GROUP BY auction");
    let derived = |branches: &str| {
        let (graph, catalog) = (plan(&over(branches)), super::catalog());
        let alone = crate::planner::derivations(&graph, &catalog).expect("they can be derived");
        let mut of_branches = crate::planner::branch_derivations(&graph, &catalog).expect("they can be derived");
        (alone["aggregate(auction)"].clone(), of_branches.remove("aggregate(auction)").unwrap_or_default())
    };
    let (bids, log) = ("SELECT auction, price FROM bids WHERE price > 3", "SELECT auction, price FROM log");
    let nested = format!("SELECT auction, price FROM ({log} UNION ALL {bids}) AS n WHERE auction > 0");
    let (of_bids, none) = derived(bids);
    assert!(none.is_empty() && of_bids.sources == ["bids"], "{of_bids:?}");
    let (both, branches) = derived(&format!("{log} UNION ALL {bids}"));
    assert_eq!(both.sources, ["bids", "log"]);
    assert_eq!(branches, [derived(log).0, of_bids.clone()]);
    // A filter over several is one over each.
    let (_, branches) = derived(&format!("{bids} UNION ALL {nested}"));
    let sources: Vec<&[String]> = branches.iter().map(|branch| branch.sources.as_slice()).collect();
    assert_eq!(sources, [["bids"], ["log"], ["bids"]]);
    assert_eq!(branches[0], of_bids);
    assert!(branches[2].relation != of_bids.relation && branches[2].key == of_bids.key, "{branches:?}");
}
