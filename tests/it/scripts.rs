//! `weir run FILE.sql` and `weir sql`: the programs' own output and exit status.

use std::io::Write;
use std::process::{Output, Stdio};

use crate::server::{Server, settings, weir};

fn run_script(script: &str, data_dir: Option<&std::path::Path>) -> Output {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let file = folder.path().join("script.sql");
    std::fs::write(&file, script).expect("the script can be written");
    let mut command = weir();
    command.arg("run").arg(&file).stdin(Stdio::null());
    if let Some(data_dir) = data_dir {
        command.arg("--data-dir").arg(data_dir);
    }
    command.output().expect("weir runs")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[test]
fn a_script_waits_for_its_bounded_jobs_and_prints_its_selects() {
    let output = run_script(
        "CREATE TABLE t (a INT, b TEXT);\n\
         INSERT INTO t VALUES (1, 'x'), (2, 'x'), (40, 'y'); -- a comment; with a semicolon\n\
         CREATE MATERIALIZED VIEW v AS SELECT b, sum(a) AS total FROM t GROUP BY b;\n\
         FLUSH;\n\
         SELECT b, total + 1000 AS answer FROM v ORDER BY b;\n\
         CREATE TABLE out (auction BIGINT, n BIGINT) WITH (connector = 'blackhole');\n\
         CREATE TABLE bid WITH (connector = 'nexmark', 'table' = 'bid', 'events.num' = '50000');\n\
         INSERT INTO out SELECT auction, count(*) FROM bid GROUP BY auction;\n",
        None,
    );
    let (printed, errors) = (text(&output.stdout), text(&output.stderr));
    assert!(output.status.success(), "{printed}\n{errors}");
    let lines: Vec<&str> = printed.lines().collect();
    let x = lines.iter().position(|line| line.contains('x') && line.contains("1003")).unwrap_or_else(|| panic!("{printed}"));
    let y = lines.iter().position(|line| line.contains('y') && line.contains("1040")).unwrap_or_else(|| panic!("{printed}"));
    assert!(x < y && printed.contains("answer"), "{printed}");
}

#[test]
fn a_script_that_fails_says_so_and_stops() {
    let output = run_script("SELECT 1 + 1 AS two;\nSELECT * FROM nobody;\nSELECT 17171 AS never;\n", None);
    assert!(!output.status.success());
    let (printed, errors) = (text(&output.stdout), text(&output.stderr));
    assert!(printed.contains("two"), "{printed}");
    assert!(!printed.contains("17171"), "{printed}");
    assert!(errors.contains("relation \"nobody\" does not exist"), "{errors}");
}

#[test]
fn a_script_that_fails_leaves_no_file_that_is_not_committed() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let out = folder.path().join("out");
    let script = |last: &str| {
        format!(
            "SET checkpoint_interval = '1 h'; CREATE TABLE t (a INT); INSERT INTO t VALUES (1), (2);\n\
             CREATE SINK s WITH (connector = 'file', path = '{}', format = 'debezium-json') AS SELECT a, 10 / a AS b FROM t WHERE a <> 7;\n\
             FLUSH;\n{last}\n",
            out.display()
        )
    };
    let failing = format!(
        "CREATE TABLE bid WITH (connector = 'nexmark', 'table' = 'bid', 'events.num' = '100000');\n\
         CREATE SINK f WITH (connector = 'file', path = '{}', format = 'csv') AS SELECT 10 / (auction - 1010) AS a FROM bid;",
        out.join("failing").display()
    );
    for last in ["SELECT * FROM nobody;", "BEGIN; INSERT INTO t VALUES (3); SELECT * FROM nobody;", &failing] {
        let output = run_script(&script(last), None);
        assert!(!output.status.success(), "{last}: {}", text(&output.stdout));
        assert!(out.join("_weir_commits").is_dir(), "{last}: the sink has not begun: {}", text(&output.stderr));
        let hidden = [crate::files::hidden(&out), crate::files::hidden(&out.join("failing"))].concat();
        assert!(hidden.is_empty(), "{last}: {hidden:?}\n{}", text(&output.stderr));
    }
}

#[test]
fn a_script_keeps_what_it_makes_in_its_data_folder() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let data_dir = folder.path().join("data");
    let first = run_script(
        "CREATE TABLE t (a INT); INSERT INTO t VALUES (41); CREATE MATERIALIZED VIEW v AS SELECT sum(a) AS s FROM t;",
        Some(&data_dir),
    );
    assert!(first.status.success(), "{}", text(&first.stderr));
    let second = run_script("INSERT INTO t VALUES (59000); FLUSH; SELECT s FROM v;", Some(&data_dir));
    assert!(second.status.success(), "{}", text(&second.stderr));
    assert!(text(&second.stdout).contains("59041"), "{}", text(&second.stdout));
}

#[test]
fn the_shell_reads_statements_from_its_standard_input() {
    let server = Server::start(&settings(&[]));
    let url = format!("postgres://weir@{}/weir", server.address());
    let mut shell =
        weir().args(["sql", &url]).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("weir runs");
    let input = b"CREATE TABLE t (a INT);\nINSERT INTO t VALUES (1),\n (2);\nSELECT sum(a) + 4210 AS answer FROM t;\nSELECT * FROM nobody;\nSELECT 5 * 1111 AS later;\n";
    shell.stdin.take().expect("stdin is piped").write_all(input).expect("the shell reads");
    let output = shell.wait_with_output().expect("the shell ends");
    let (printed, errors) = (text(&output.stdout), text(&output.stderr));
    assert!(printed.contains("4213"), "{printed}\n{errors}");
    assert!(printed.contains("5555"), "an error ended the shell: {printed}\n{errors}");
    assert!(format!("{printed}{errors}").contains("relation \"nobody\" does not exist"), "{printed}\n{errors}");
}

#[test]
fn the_shell_prints_what_came_before_an_error_and_what_the_server_has_to_say() {
    let server = Server::start(&settings(&[]));
    let url = format!("postgres://weir@{}/weir", server.address());
    let run = |command: &str| {
        let output = weir().args(["sql", &url, "-c", command]).stdin(Stdio::null()).output().expect("weir runs");
        (output.status.success(), text(&output.stdout), text(&output.stderr))
    };
    let (success, printed, errors) = run("SELECT 1200 + 34 AS answer; SELECT * FROM nobody; SELECT 5678 AS never");
    assert!(!success);
    assert!(printed.contains("1234") && !printed.contains("5678"), "{printed}");
    assert!(errors.contains("relation \"nobody\" does not exist"), "{errors}");
    let (success, printed, errors) = run("DROP TABLE IF EXISTS nobody");
    assert!(success && printed.contains("OK"), "{printed}");
    assert!(errors.contains("NOTICE:  table \"nobody\" does not exist, skipping"), "{errors}");
}

#[test]
fn the_shell_has_the_commands_that_psql_users_type() {
    let server = Server::start(&settings(&[]));
    let url = format!("postgres://weir@{}/weir", server.address());
    let folder = tempfile::tempdir().expect("a temporary folder");
    let file = folder.path().join("more.sql");
    std::fs::write(&file, "SELECT 40 + 2 AS included;\n\\echo from a file\n").expect("the file can be written");
    let run = |arguments: &[&str], input: &str| {
        let mut shell = weir()
            .args(["sql", &url])
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("weir runs");
        // It may have left before it has read all.
        let _ = shell.stdin.take().expect("stdin is piped").write_all(input.as_bytes());
        let output = shell.wait_with_output().expect("the shell ends");
        (output.status.code(), text(&output.stdout), text(&output.stderr))
    };
    let (code, printed, errors) = run(
        &[],
        &format!(
            "CREATE TABLE \"T one\" (a INT);\nCREATE VIEW v AS SELECT 1 AS b;\nCREATE MATERIALIZED VIEW m AS SELECT a FROM \"T one\";\n\
             \\d\n\\dm\n\\d \"T one\"\n\\echo  so far\n\\i {}\n\\x\nSELECT 7 AS seven, ';\\x' AS text;\n\\timing on\nSELECT 1;\n\\?\n\\q\nSELECT 999;\n",
            file.display()
        ),
    );
    assert_eq!((code, errors.as_str()), (Some(0), ""), "{printed}");
    for expected in [
        " public | T one | table\n",
        " public | v     | view\n",
        "(3 rows)",
        " public | m    | materialized view\n(1 row)",
        "so far\n",
        "42\n",
        "from a file\n",
        "Expanded display is on.\n-[ RECORD 1 ]",
        "seven | 7\ntext  | ;\\x\n",
        "Timing is on.\n",
        "Time: ",
        "\\timing [on|off]",
    ] {
        assert!(printed.contains(expected), "{expected:?} is missing:\n{printed}");
    }
    assert!(!printed.contains("999"), "{printed}");
    // What it does not know, it says, and goes on or not as it was told.
    let (code, printed, errors) = run(&[], "\\frobnicate x\nSELECT 5 * 1111;\n\\i /nowhere/at.all\n");
    assert_eq!(code, Some(1));
    assert!(printed.contains("5555") && errors.starts_with("invalid command \\frobnicate\nTry \\? for help.\n"), "{printed}\n{errors}");
    assert!(errors.contains("/nowhere/at.all: No such file"), "{errors}");
    for wrong in ["\\frobnicate", "SELECT 1 / 0;", "\\i /nowhere"] {
        let (code, printed, errors) = run(&["--on-error-stop"], &format!("SELECT 1;\n{wrong}\nSELECT 5 * 1111;\n"));
        assert!(code == Some(3) && !printed.contains("5555") && !errors.is_empty(), "{wrong}: {code:?}\n{printed}\n{errors}");
    }
    let (code, printed, _) = run(&[], "\\set ON_ERROR_STOP on\nSELECT 1 / 0;\nSELECT 5 * 1111;\n");
    assert!(code == Some(3) && !printed.contains("5555"), "{code:?}\n{printed}");
}

#[test]
fn many_views_need_no_raised_limit_of_open_files() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let file = folder.path().join("script.sql");
    let views: String = (0..12)
        .map(|i| format!("CREATE MATERIALIZED VIEW v{i} AS SELECT a % 7 AS k, max(a + {i}) AS m FROM t GROUP BY a % 7;\n"))
        .collect();
    let script = format!(
        "SET parallelism = 2; CREATE TABLE t (a INT); INSERT INTO t VALUES (1), (2), (9);\n{views}CHECKPOINT; FLUSH; SELECT k, 'has ' || m AS found FROM v11 ORDER BY k;\n"
    );
    std::fs::write(&file, script).expect("the script can be written");
    // What a shell that was told nothing gives, in small.
    let mut command = std::process::Command::new("sh");
    let program = weir();
    command.arg("-c").arg("ulimit -S -n 128; exec \"$0\" run \"$1\"").arg(program.get_program()).arg(&file).stdin(Stdio::null());
    let output = command.output().expect("weir runs");
    let (printed, errors) = (text(&output.stdout), text(&output.stderr));
    assert!(output.status.success() && printed.contains("has 20") && printed.contains("has 12"), "{printed}\n{errors}");
}
