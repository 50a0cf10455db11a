//! psql 15's backslash commands.

use super::*;

/// The statement of `psql_15.sql` with this name.
fn statement(name: &str) -> String {
    let file = include_str!("psql_15.sql");
    let start = format!("-->> {name}\n");
    let rest = &file[file.find(&start).unwrap_or_else(|| panic!("no statement {name}")) + start.len()..];
    rest.split("\n-->> ").next().unwrap().to_string()
}

/// For a relation: its OID, its primary key's index, its name.
fn about(name: &str, oid: u32, relation: &str) -> String {
    statement(name).replace("{oid}", &oid.to_string()).replace("{index}", &(oid + 0x1000_0000).to_string()).replace("{name}", relation)
}

#[tokio::test]
async fn lists_show_the_right_objects() {
    let pg = pg();
    let all = query(&pg, &statement("d_1")).await;
    assert_eq!(all.0, ["Schema", "Name", "Type", "Owner"]);
    let lines: Vec<String> = all.1.iter().map(|row| row.join("|")).collect();
    assert_eq!(
        lines,
        [
            "public|bids|table|weir",
            "public|germans|view|weir",
            "public|pair|table|weir",
            "public|per_country|materialized view|weir",
            "public|users|table|weir",
        ]
    );
    assert_eq!(rows(&pg, &statement("dt_1")).await, ["public|bids|table|weir", "public|pair|table|weir", "public|users|table|weir"]);
    assert_eq!(rows(&pg, &statement("dm_1")).await, ["public|per_country|materialized view|weir"]);
    assert_eq!(rows(&pg, &statement("dv_1")).await, ["public|germans|view|weir"]);
    assert_eq!(rows(&pg, &statement("di_1")).await, ["public|pair_pkey|index|weir|pair", "public|users_pkey|index|weir|users"]);
    assert_eq!(rows(&pg, &about("dt_name_1", 0, "users")).await, ["public|users|table|weir"]);
    assert_eq!(rows(&pg, &statement("dt_plus_1")).await[2], "public|users|table|weir|permanent|heap|~|~");
    assert_eq!(rows(&pg, &statement("dn_1")).await, ["public|weir"]);
    assert_eq!(rows(&pg, &statement("dn_plus_1")).await, ["public|weir|~|~"]);
    assert_eq!(rows(&pg, &statement("l_1")).await, ["weir|weir|UTF8|C|C|~|libc|~"]);
    assert_eq!(rows(&pg, &statement("l_plus_1")).await, ["weir|weir|UTF8|C|C|~|libc|~|~|pg_default|~"]);
    assert_eq!(rows(&pg, &statement("du_1")).await, ["weir|true|true|true|true|true|-1|~|{}|false|false"]);
    assert_eq!(rows(&pg, &statement("db_1")).await, ["pg_default|weir|"]);
}

#[tokio::test]
async fn lists_of_what_weir_does_not_have_are_empty() {
    let pg = pg();
    for name in ["df_1", "dT_1", "dx_1", "do_1", "drds_1", "dRp_1", "det_1", "dd_1"] {
        let (names, rows) = query(&pg, &statement(name)).await;
        assert!(rows.is_empty(), "{name}: {rows:?}");
        assert!(names.len() >= 3, "{name}: {names:?}");
    }
}

#[tokio::test]
async fn a_table_is_described() {
    let pg = pg();
    assert_eq!(rows(&pg, &about("describe_1", 0, "users")).await, ["16384|public|users"]);
    assert_eq!(rows(&pg, &about("describe_1", 0, "nope")).await, [""; 0]);
    assert_eq!(rows(&pg, &about("describe_1", 0, "out")).await, [""; 0], "a sink is no relation");
    assert_eq!(rows(&pg, &about("describe_qualified_1", 0, "users")).await, ["16384|public|users"]);
    assert_eq!(rows(&pg, &statement("describe_pattern_1")).await, ["16384|public|users", "268451840|public|users_pkey"]);
    let details = query(&pg, &about("describe_2", 16_384, "users")).await;
    assert_eq!(details.1.len(), 1);
    assert_eq!(details.0[1], "relkind");
    assert_eq!(details.1[0].join("|"), "0|r|true|false|false|false|false|false|false||0||p|d|heap");
    let columns = query(&pg, &about("describe_3", 16_384, "users")).await;
    assert_eq!(columns.0, ["attname", "format_type", "pg_get_expr", "attnotnull", "attcollation", "attidentity", "attgenerated"]);
    let lines: Vec<String> = columns.1.iter().map(|row| row.join("|")).collect();
    assert_eq!(
        lines,
        [
            "id|bigint|~|true|~||",
            "name|text|~|true|~||",
            "country|text|'DE'|false|~||",
            "score|numeric(12,2)|~|false|~||",
            "amount|numeric|~|false|~||",
            "ok|boolean|~|false|~||",
            "n|integer|~|false|~||",
            "d|double precision|~|false|~||",
        ]
    );
    assert_eq!(
        rows(&pg, &about("describe_4", 16_384, "users")).await,
        ["users_pkey|true|true|false|true|CREATE UNIQUE INDEX users_pkey ON public.users USING btree (id)|PRIMARY KEY (id)|p|false|false|\
             false|0"]
    );
    assert_eq!(
        rows(&pg, &about("describe_4", 16_385, "pair")).await,
        [
            "pair_pkey|true|true|false|true|CREATE UNIQUE INDEX pair_pkey ON public.pair USING btree (\"A b\", b)|PRIMARY KEY (\"A b\", b)|p|\
             false|false|false|0"
        ]
    );
    for name in ["describe_5", "describe_6", "describe_7", "describe_8", "describe_9"] {
        assert!(rows(&pg, &about(name, 16_384, "users")).await.is_empty(), "{name}");
    }
    let more = rows(&pg, &about("describe_plus_1", 16_384, "users")).await;
    assert_eq!(more.len(), 1);
    let more = rows(&pg, &about("describe_plus_2", 16_384, "users")).await;
    assert_eq!(more[2], "country|text|'DE'|false|~|||x||~|~");
}

#[tokio::test]
async fn other_relations_are_described() {
    let pg = pg();
    assert_eq!(
        rows(&pg, &about("describe_3", 16_386, "bids")).await,
        ["ts|timestamp(3) without time zone|~|false|~||", "at|timestamp without time zone|~|false|~||", "bid|record|~|false|~||",]
    );
    assert!(rows(&pg, &about("describe_4", 16_386, "bids")).await.is_empty(), "a connector table has no index");
    assert_eq!(rows(&pg, &about("describe_3", 16_387, "germans")).await, ["id|bigint|~|false|~||", "name|text|~|false|~||"]);
    assert_eq!(rows(&pg, &about("view_plus_3", 16_387, "germans")).await, ["SELECT id, name FROM users WHERE country = 'DE';"]);
    assert!(rows(&pg, &about("view_plus_4", 16_387, "germans")).await.is_empty());
    assert_eq!(rows(&pg, &about("describe_3", 16_388, "per_country")).await, ["country|text|~|false|~||", "n|bigint|~|true|~||"]);
    let kinds = rows(&pg, &about("describe_2", 16_388, "per_country")).await;
    assert!(kinds[0].starts_with("0|m|"), "{kinds:?}");
}

#[tokio::test]
async fn an_index_is_described() {
    let pg = pg();
    assert_eq!(rows(&pg, &about("describe_pattern_3", 16_384, "users")).await, ["id|bigint|yes|id"]);
    assert_eq!(
        rows(&pg, &about("describe_pattern_4", 16_384, "users")).await,
        ["true|true|false|true|false|false|false|false|btree|users|~"]
    );
}

#[tokio::test]
async fn a_view_is_shown() {
    let pg = pg();
    assert_eq!(rows(&pg, &about("sv_1", 0, "germans")).await, ["16387"]);
    assert_eq!(
        rows(&pg, &about("sv_2", 16_387, "germans")).await,
        ["public|germans|v|SELECT id, name FROM users WHERE country = 'DE';|~|~"]
    );
    let missing = error(&pg, &about("sv_1", 0, "nobody")).await;
    assert_eq!((missing.code().as_str(), missing.message()), ("42P01", "relation \"nobody\" does not exist"));
}
