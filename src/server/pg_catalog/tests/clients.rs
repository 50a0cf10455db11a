//! Drivers, and statements that are not about the catalog.

use super::*;

#[tokio::test]
async fn statements_about_the_session_are_answered() {
    let variables = BTreeMap::from([("search_path".to_string(), "public".to_string())]);
    let pg = pg().with_session(SessionFacts { user: "ada".into(), process_id: 4711, variables });
    let version = query(&pg, "SELECT version()").await;
    assert_eq!(version.0, ["version"]);
    assert!(version.1[0][0].starts_with("PostgreSQL 15.0 (weir "), "{version:?}");
    assert_eq!(query(&pg, "select pg_catalog.version()").await.1, version.1);
    assert_eq!(query(&pg, "SELECT current_schema()").await, (vec!["current_schema".into()], vec![vec!["public".into()]]));
    assert_eq!(rows(&pg, "SELECT current_schema, current_database(), session_user, pg_backend_pid()").await, ["public|weir|ada|4711"]);
    assert_eq!(rows(&pg, "SELECT pg_get_userbyid(10), pg_get_userbyid(99)").await, ["ada|unknown (OID=99)"]);
    assert_eq!(rows(&pg, "SELECT current_schemas(true), current_schemas(false)").await, ["{pg_catalog,public}|{public}"]);
    assert_eq!(rows(&pg, "SELECT pg_catalog.set_config('search_path', '', false)").await, [""]);
    assert_eq!(rows(&pg, "SELECT current_setting('search_path'), current_setting('none', true)").await, ["public|~"]);
    assert_eq!(rows(&pg, "SELECT name, setting FROM pg_settings").await, ["search_path|public"]);
    assert_eq!(*error(&pg, "SELECT set_config('statement_timeout', '5s', false)").await.code(), SqlState::FEATURE_NOT_SUPPORTED);
    assert_eq!(*error(&pg, "SELECT current_setting('none')").await.code(), SqlState::UNDEFINED_OBJECT);
    assert_eq!(
        rows(&pg, "SELECT 'users'::regclass, 'users'::regclass::oid, 16388::regclass::text, 'int4'::regtype::oid, 25::regtype").await,
        ["users|16384|per_country|23|text"]
    );
    assert_eq!(
        rows(&pg, "SELECT format_type(1700, 786438), format_type(1007, NULL), format_type(4, -1), pg_size_pretty(123456789)").await,
        ["numeric(12,2)|integer[]|???|118 MB"]
    );
}

#[tokio::test]
async fn other_statements_are_left_alone() {
    let pg = pg();
    let mut catalog = catalog();
    let table = StoredTable {
        id: 16_400,
        name: "pg_class".into(),
        columns: vec![column("v", SqlType::Int)],
        primary_key: None,
        sql: String::new(),
    };
    for sql in [
        "SELECT 1",
        "SELECT * FROM users",
        "SELECT current_user",
        "INSERT INTO users VALUES (1, 'pg_class')",
        "SELECT 'pg_catalog'",
        "SELECT * FROM pg_unknown",
        "SELECT * FROM pg_class; SELECT 1",
        "SELECT pg_class FROM",
        "WITH pg_class AS (SELECT 1) SELECT * FROM pg_class",
        "",
    ] {
        assert!(pg.try_query(sql, &catalog).await.is_none(), "{sql}");
        assert!(pg.columns(sql, &catalog).await.is_none(), "{sql}");
    }
    assert!(pg.try_query("SELECT * FROM pg_class", &catalog).await.is_some());
    catalog.apply(&CatalogChange::Create(Object::StoredTable(table))).unwrap();
    assert!(pg.try_query("SELECT * FROM pg_class", &catalog).await.is_none(), "a user's table comes first");
    assert!(pg.try_query("SELECT relname FROM pg_catalog.pg_class", &catalog).await.is_some());
}

#[tokio::test]
async fn what_is_not_there_is_an_error() {
    let pg = pg();
    let missing = error(&pg, "SELECT * FROM pg_catalog.pg_nothing").await;
    assert_eq!((missing.code().as_str(), missing.message()), ("42P01", "relation \"pg_catalog.pg_nothing\" does not exist"));
    assert_eq!(error(&pg, "SELECT * FROM information_schema.nothing").await.code().as_str(), "42P01");
    assert_eq!(error(&pg, "SELECT * FROM pg_class, users").await.code().as_str(), "0A000");
    assert_eq!(error(&pg, "SELECT nothing FROM pg_class").await.code().as_str(), "42703");
    assert_eq!(error(&pg, "SELECT 'nothing'::regtype").await.code().as_str(), "42704");
    let unknown = error(&pg, "SELECT pg_nothing(1)").await;
    assert_eq!((unknown.code().as_str(), unknown.message()), ("42883", "function pg_nothing does not exist"));
    assert_eq!(error(&pg, "SELECT relname FROM pg_class WHERE oid = $1").await.code().as_str(), "42P02");
}

#[tokio::test]
async fn types_are_looked_up_by_parameter() {
    let pg = pg();
    let by_oid = "SELECT t.typname, t.typtype, t.typelem, r.rngsubtype, t.typbasetype, n.nspname, t.typrelid \
                  FROM pg_catalog.pg_type t LEFT OUTER JOIN pg_catalog.pg_range r ON r.rngtypid = t.oid \
                  INNER JOIN pg_catalog.pg_namespace n ON t.typnamespace = n.oid WHERE t.oid = $1";
    let (names, found) = query_with(&pg, by_oid, &[ScalarValue::Int32(Some(1700))]).await;
    assert_eq!(names, ["typname", "typtype", "typelem", "rngsubtype", "typbasetype", "nspname", "typrelid"]);
    assert_eq!(found, [["numeric", "b", "0", "~", "0", "pg_catalog", "0"]]);
    assert_eq!(query_with(&pg, by_oid, &[ScalarValue::Utf8(Some("23".into()))]).await.1[0][0], "int4");
    assert_eq!(pg.parameter_types(by_oid, &catalog()).unwrap().unwrap(), [SqlType::Int]);
    let columns = pg.columns(by_oid, &catalog()).await.unwrap().unwrap();
    assert_eq!(columns.iter().map(|column| column.name.as_str()).collect::<Vec<_>>(), names);
    assert_eq!(columns[0].ty, SqlType::Text);
    assert_eq!(columns[2].ty, SqlType::Int);
    let by_name = "SELECT oid, typarray FROM pg_type WHERE typname = $1";
    assert_eq!(pg.parameter_types(by_name, &catalog()).unwrap().unwrap(), [SqlType::Text]);
    assert_eq!(query_with(&pg, by_name, &[ScalarValue::Utf8(Some("text".into()))]).await.1, [["25", "1009"]]);
    let enums = "SELECT enumlabel FROM pg_catalog.pg_enum WHERE enumtypid = $1 ORDER BY enumsortorder";
    assert!(query_with(&pg, enums, &[ScalarValue::Int32(Some(16_384))]).await.1.is_empty());
    // psycopg's look-up of a type by name.
    let psycopg = "SELECT typname AS name, oid, typarray AS array_oid, oid::regtype::text AS regtype, typdelim AS delimiter \
                   FROM pg_type t WHERE t.oid = to_regtype($1) ORDER BY t.oid";
    assert_eq!(query_with(&pg, psycopg, &[ScalarValue::Utf8(Some("bigint".into()))]).await.1, [["int8", "20", "1016", "bigint", ","]]);
}

#[tokio::test]
async fn keys_are_found_as_drivers_do() {
    let pg = pg();
    let key = "SELECT a.attname, format_type(a.atttypid, a.atttypmod) AS data_type FROM pg_index i \
               JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = ANY(i.indkey) \
               WHERE i.indrelid = 'pair'::regclass AND i.indisprimary ORDER BY 1";
    assert_eq!(rows(&pg, key).await, ["A b|text", "b|integer"]);
    let usage = "SELECT kc.column_name, kc.ordinal_position FROM information_schema.table_constraints tc \
                 JOIN information_schema.key_column_usage kc ON kc.constraint_name = tc.constraint_name \
                 WHERE tc.constraint_type = 'PRIMARY KEY' AND tc.table_name = 'pair' ORDER BY kc.ordinal_position";
    assert_eq!(rows(&pg, usage).await, ["A b|1", "b|2"]);
    assert_eq!(
        rows(&pg, "SELECT indkey, conkey FROM pg_index JOIN pg_constraint ON conindid = indexrelid WHERE indrelid = 16385").await,
        ["{2,1}|{2,1}"]
    );
}

#[tokio::test]
async fn the_information_schema_lists_tables_and_columns() {
    let pg = pg();
    assert_eq!(
        rows(&pg, "SELECT table_name, table_type FROM information_schema.tables WHERE table_schema = 'public' ORDER BY 1").await,
        ["bids|BASE TABLE", "germans|VIEW", "pair|BASE TABLE", "users|BASE TABLE"]
    );
    assert_eq!(
        rows(
            &pg,
            "SELECT column_name, data_type, is_nullable, column_default, numeric_precision, numeric_scale FROM information_schema.columns \
             WHERE table_name = 'users' AND ordinal_position <= 4 ORDER BY ordinal_position"
        )
        .await,
        ["id|bigint|NO|~|64|0", "name|text|NO|~|~|~", "country|text|YES|'DE'|~|~", "score|numeric|YES|~|12|2"]
    );
    assert_eq!(
        rows(&pg, "SELECT matviewname, definition FROM pg_matviews").await,
        ["per_country|SELECT country, count(*) AS n FROM users GROUP BY country"]
    );
    assert_eq!(rows(&pg, "SELECT count(*) FROM pg_class WHERE relnamespace = 'public'::regnamespace").await, ["7"]);
    let all = query(&pg, "SELECT * FROM pg_namespace ORDER BY oid").await;
    assert_eq!(all.0, ["oid", "nspname", "nspowner", "nspacl"]);
    assert_eq!(all.1.len(), 3);
}

#[tokio::test]
async fn a_correlated_subquery_gives_its_value_for_each_row() {
    let pg = pg();
    assert_eq!(
        rows(
            &pg,
            "SELECT c.relname, (SELECT n.nspname FROM pg_namespace n WHERE n.oid = c.relnamespace), \
             (SELECT count(*) FROM pg_attribute a WHERE a.attrelid = c.oid) FROM pg_class c WHERE c.relkind = 'r' AND c.relnamespace = 2200 \
             ORDER BY 1"
        )
        .await,
        ["bids|public|3", "pair|public|2", "users|public|8"]
    );
}

#[tokio::test]
async fn jdbc_finds_types_tables_and_columns() {
    let pg = pg();
    let array = "SELECT typinput='pg_catalog.array_in'::regproc AS is_array, typname FROM pg_catalog.pg_type LEFT JOIN \
                 (SELECT ns.oid AS nspoid, ns.nspname, r.r FROM pg_namespace AS ns JOIN (SELECT s.r, (current_schemas(false))[s.r] AS nspname \
                 FROM generate_series(1, array_upper(current_schemas(false), 1)) AS s(r)) AS r USING (nspname)) AS sp \
                 ON sp.nspoid = typnamespace WHERE pg_type.oid = $1 ORDER BY sp.r, pg_type.oid DESC";
    assert_eq!(query_with(&pg, array, &[ScalarValue::Int32(Some(1007))]).await.1, [["true", "_int4"]]);
    assert_eq!(query_with(&pg, array, &[ScalarValue::Int32(Some(23))]).await.1, [["false", "int4"]]);
    let columns = "SELECT * FROM (SELECT c.relname, a.attname, row_number() OVER (PARTITION BY a.attrelid ORDER BY a.attnum) AS attnum, \
                   nullif(a.attidentity, '') AS attidentity, pg_catalog.pg_get_expr(def.adbin, def.adrelid) AS adsrc, t.typtype \
                   FROM pg_catalog.pg_class c JOIN pg_catalog.pg_attribute a ON (a.attrelid = c.oid) \
                   JOIN pg_catalog.pg_type t ON (a.atttypid = t.oid) \
                   LEFT JOIN pg_catalog.pg_attrdef def ON (a.attrelid = def.adrelid AND a.attnum = def.adnum) \
                   WHERE c.relkind IN ('r','p','v','f','m') AND a.attnum > 0 AND c.relname LIKE 'user%') c WHERE attnum <= 3 ORDER BY attnum";
    assert_eq!(rows(&pg, columns).await, ["users|id|1|~|~|b", "users|name|2|~|~|b", "users|country|3|~|'DE'|b"]);
    let tables = "SELECT c.relname AS TABLE_NAME, d.description AS REMARKS FROM pg_catalog.pg_namespace n, pg_catalog.pg_class c \
                  LEFT JOIN pg_catalog.pg_description d ON (c.oid = d.objoid AND d.objsubid = 0 AND d.classoid = 'pg_class'::regclass) \
                  WHERE c.relnamespace = n.oid AND c.relkind = 'r' AND n.nspname !~ '^pg_' ORDER BY TABLE_NAME";
    assert_eq!(rows(&pg, tables).await, ["bids|~", "pair|~", "users|~"]);
}

#[tokio::test]
async fn asyncpg_finds_arrays_and_their_elements() {
    let pg = pg();
    let types = include_str!("asyncpg.sql");
    assert_eq!(pg.parameter_types(types, &catalog()).unwrap().unwrap(), [SqlType::Array(Box::new(SqlType::Int))]);
    let asked = ScalarValue::List(ScalarValue::new_list_nullable(
        &[ScalarValue::Int32(Some(1007)), ScalarValue::Int32(Some(2287)), ScalarValue::Int32(Some(23))],
        &arrow::datatypes::DataType::Int32,
    ));
    let (names, mut found) = query_with(&pg, types, &[asked]).await;
    assert_eq!(names[..7], ["oid", "ns", "name", "kind", "basetype", "elemtype", "elemdelim"]);
    assert_eq!(names[7..], ["range_subtype", "attrtypoids", "attrnames", "depth", "basetype_name", "elemtype_name", "range_subtype_name"]);
    // What an array is made of comes before it; those of one depth come in any order.
    assert_eq!((found[0][2].as_str(), found[0][10].as_str()), ("record", "1"));
    found.sort();
    let shown: Vec<String> = found.iter().map(|row| [&row[0], &row[2], &row[3], &row[5]].map(String::as_str).join("|")).collect();
    assert_eq!(shown, ["1007|_int4|b|23", "2249|record|p|0", "2287|_record|p|2249", "23|int4|b|0"]);
    let columns = pg.columns(types, &catalog()).await.unwrap().unwrap();
    assert_eq!(columns.iter().map(|column| column.name.as_str()).collect::<Vec<_>>(), names);
    assert_eq!(columns[0].ty, SqlType::Int);
}
