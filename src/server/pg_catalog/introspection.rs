//! What asyncpg asks about types that it does not know, in a form that can be planned.
//!
//! It follows types to all that they are made of, with a recursive query whose arms have correlated subqueries for domains, ranges and composite types. There
//! are no such types here: all that a type is made of is the element of an array.

use datafusion::sql::sqlparser::ast::{Query, Statement};
use datafusion::sql::sqlparser::dialect::PostgreSqlDialect;
use datafusion::sql::sqlparser::parser::Parser;
use weir_catalog::{Error, Result};

use super::statement::name_of;

/// The name of asyncpg's recursive query, and its columns.
const NAME: &str = "typeinfo_tree";
const COLUMNS: [&str; 11] =
    ["oid", "ns", "name", "kind", "basetype", "elemtype", "elemdelim", "range_subtype", "attrtypoids", "attrnames", "depth"];

/// The types that are asked for, and the elements of those that are arrays, which come first.
const TYPES: &str = "\
    SELECT DISTINCT t.oid AS oid, n.nspname AS ns, t.typname AS name, t.typtype AS kind, CAST(NULL AS int) AS basetype, t.typelem AS elemtype, \
        e.typdelim AS elemdelim, CAST(NULL AS int) AS range_subtype, CAST(NULL AS text) AS attrtypoids, CAST(NULL AS text) AS attrnames, \
        CASE WHEN t.oid = ANY($1::oid[]) THEN 0 ELSE 1 END AS depth, CAST(NULL AS text) AS basetype_name, \
        format_type(t.typelem, NULL) AS elemtype_name, CAST(NULL AS text) AS range_subtype_name \
    FROM pg_catalog.pg_type t \
        JOIN pg_catalog.pg_namespace n ON n.oid = t.typnamespace \
        LEFT JOIN pg_catalog.pg_type e ON e.oid = t.typelem AND t.typlen = -1 \
        LEFT JOIN pg_catalog.pg_type a ON a.typelem = t.oid AND a.oid = ANY($1::oid[]) \
    WHERE t.oid = ANY($1::oid[]) OR a.oid IS NOT NULL \
    ORDER BY depth DESC";

/// `query`, or what gives the same rows where it is asyncpg's.
pub(super) fn plannable(query: Box<Query>) -> Result<Box<Query>> {
    let is_asyncpg = query.with.as_ref().is_some_and(|with| match with.cte_tables.as_slice() {
        [table] => {
            name_of(&table.alias.name) == NAME
                && table.alias.columns.iter().map(|column| name_of(&column.name)).eq(COLUMNS.iter().map(|name| (*name).to_string()))
        }
        _ => false,
    });
    if !is_asyncpg {
        return Ok(query);
    }
    let parsed = Parser::parse_sql(&PostgreSqlDialect {}, TYPES);
    match parsed.map_err(|e| Error::internal(e.to_string()))?.pop() {
        Some(Statement::Query(types)) => Ok(types),
        _ => Err(Error::internal("the query for types is none")),
    }
}
