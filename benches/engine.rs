//! The whole engine under load, each measurement in a process of its own. `make bench` runs it with weir's crates optimised.
//!
//! | section | what it measures |
//! | --- | --- |
//! | `throughput` | Nexmark bids from the built-in generator through `GROUP BY auction` into `blackhole`, for three checkpoint intervals in turn |
//! | `latency` | from sending an INSERT to its row in a `GROUP BY` view, with ten views |
//! | `idle` | CPU time of an engine with ten views and nothing to do |
//! | `distinct` | as many new random keys as are asked for, in little memory |
//! | `incremental` | what 20 checkpoints store while a random hundredth of the keys changes between each two |
//! | `recovery` | kill -9, page cache dropped, and the time until a job with that many keys runs again |
//! | `savepoint` | a savepoint of that many keys beside a checkpoint, and a job that begins with it |
//!
//! Arguments: `--only SECTION`, `--seconds N` of measured time (60, after 10 s of warm-up), `--runs N` (5), `--keys N` (50 million for `distinct`, 10 million
//! for the others), `--memory SIZE` (2 GiB, `distinct`: 512 MiB), `--quick` (10 s, one run, a hundredth of the keys, no aims). It fails where a job fails, an
//! answer is wrong, or a median misses its aim.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, ExitCode, Stdio};
use std::time::Duration;

#[path = "engine/measures.rs"]
mod measures;

#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

/// As in the program: see `src/main.rs`.
#[unsafe(export_name = "_rjem_malloc_conf")]
static MALLOC_CONF: &[u8] = b"thp:always,dirty_decay_ms:500,muzzy_decay_ms:0\0";

type Error = Box<dyn std::error::Error>;
type Result<T> = std::result::Result<T, Error>;

const WARM_UP: Duration = Duration::from_secs(10);
const SECTIONS: [&str; 7] = ["throughput", "latency", "idle", "distinct", "incremental", "recovery", "savepoint"];

struct Arguments {
    given: Vec<String>,
}

impl Arguments {
    fn value(&self, name: &str) -> Option<&str> {
        let at = self.given.iter().position(|argument| argument == name)?;
        self.given.get(at + 1).map(String::as_str)
    }

    fn number(&self, name: &str, default: u64) -> Result<u64> {
        Ok(self.value(name).map_or(Ok(default), |value| value.replace('_', "").parse())?)
    }

    fn quick(&self) -> bool {
        self.given.iter().any(|argument| argument == "--quick")
    }

    fn seconds(&self) -> Result<u64> {
        self.number("--seconds", if self.quick() { 10 } else { 60 })
    }

    fn runs(&self) -> Result<usize> {
        Ok(self.number("--runs", if self.quick() { 1 } else { 5 })?.max(1) as usize)
    }

    fn keys(&self, default: u64) -> Result<u64> {
        self.number("--keys", if self.quick() { default / 100 } else { default })
    }
}

/// What a median should be.
#[derive(Clone, Copy)]
enum Aim {
    None,
    AtLeast(f64),
    AtMost(f64),
}

/// One of the figures that a measurement prints, in their order.
struct Figure {
    what: &'static str,
    decimals: usize,
    aim: Aim,
}

const fn figure(what: &'static str, decimals: usize, aim: Aim) -> Figure {
    Figure { what, decimals, aim }
}

/// The median of `values`, the lowest and the highest.
fn spread(values: impl Iterator<Item = f64>) -> (f64, f64, f64) {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    (values[values.len() / 2], values[0], values[values.len() - 1])
}

/// The aims that were missed so far.
#[derive(Default)]
struct Missed(Vec<String>);

impl Missed {
    /// Notes whether `median` is what it should be; the aim in words.
    fn check(&mut self, what: &str, median: f64, aim: Aim, arguments: &Arguments) -> String {
        let (is_met, words) = match aim {
            Aim::None => return String::new(),
            Aim::AtLeast(least) => (median >= least, format!("at least {least}")),
            Aim::AtMost(most) => (median <= most, format!("at most {most}")),
        };
        if is_met || arguments.quick() {
            return words;
        }
        self.0.push(format!("{what}: {median:.2}, {words}"));
        format!("{words}: MISSED")
    }
}

fn main() -> ExitCode {
    let arguments = Arguments { given: std::env::args().collect() };
    if let Some(measure) = arguments.value("--measure") {
        return finish(measures::run(measure, &arguments).map(|()| Missed::default()));
    }
    let mut missed = Missed::default();
    let result = SECTIONS
        .iter()
        .filter(|section| arguments.value("--only").is_none_or(|only| only == **section))
        .try_for_each(|section| run_section(section, &arguments, &mut missed));
    finish(result.map(|()| missed))
}

fn finish(result: Result<Missed>) -> ExitCode {
    match result {
        Ok(missed) if missed.0.is_empty() => ExitCode::SUCCESS,
        Ok(missed) => {
            eprintln!("bench: aims missed: {}", missed.0.join("; "));
            ExitCode::FAILURE
        }
        Err(error) => {
            eprintln!("bench: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run_section(section: &str, arguments: &Arguments, missed: &mut Missed) -> Result<()> {
    println!("\n### {section}\n");
    let keys = |default: u64| arguments.keys(default).map(|keys| keys.to_string());
    match section {
        "throughput" => throughput(arguments, missed),
        "latency" => {
            let inserts = arguments.number("--inserts", if arguments.quick() { 50 } else { 400 })?.to_string();
            println!("INSERT to visible, ten views, {inserts} inserts a run\n");
            let figures = [
                figure("median, ms", 1, Aim::None),
                figure("99th percentile, ms", 1, Aim::AtMost(100.0)),
                figure("longest, ms", 1, Aim::None),
            ];
            table(&figures, arguments, missed, || run("latency", &["--inserts", &inserts]))
        }
        "idle" => {
            let seconds = if arguments.quick() { "5" } else { "25" };
            println!("Ten views, nothing to do, {seconds} s a run\n");
            table(&[figure("% of a core", 2, Aim::AtMost(1.0))], arguments, missed, || run("idle", &["--seconds", seconds]))
        }
        "distinct" => {
            let (keys, memory) = (keys(50_000_000)?, arguments.value("--memory").unwrap_or("512 MiB"));
            println!("{keys} distinct random keys, memory {memory}\n");
            let figures = [
                figure("keys/s", 0, Aim::AtLeast(200_000.0)),
                figure("CPU s/s", 2, Aim::None),
                figure("peak resident MiB", 0, Aim::AtMost(1024.0)),
            ];
            table(&figures, arguments, missed, || run("distinct", &["--keys", &keys, "--memory", memory]))
        }
        "incremental" => {
            let keys = keys(10_000_000)?;
            println!("{keys} keys, 20 checkpoints, before each a uniformly random hundredth of them changed\n");
            let figures = [
                figure("stored a checkpoint, % of the state's bytes, average", 2, Aim::AtMost(15.0)),
                figure("the same, at most", 2, Aim::None),
                figure("state's bytes a key", 1, Aim::None),
            ];
            table(&figures, arguments, missed, || run("incremental", &["--keys", &keys]))
        }
        "recovery" => {
            let keys = keys(10_000_000)?;
            println!("{keys} keys, kill -9, scratch deleted, page cache dropped\n");
            let figures = [
                figure("first answer after the engine's start, s", 2, Aim::AtMost(10.0)),
                figure("rows of the input read again", 0, Aim::AtMost(0.0)),
            ];
            table(&figures, arguments, missed, || recover(&keys))
        }
        _ => {
            let keys = keys(10_000_000)?;
            println!("{keys} keys\n");
            let figures = [
                figure("CREATE SAVEPOINT beyond a checkpoint, s", 3, Aim::AtMost(1.0)),
                figure("CHECKPOINT of the same changes, s", 3, Aim::None),
                figure("a view FROM SAVEPOINT is complete after, s", 2, Aim::AtMost(10.0)),
            ];
            table(&figures, arguments, missed, || run("savepoint", &["--keys", &keys]))
        }
    }
}

/// Measures as often as asked for and prints a row for each figure.
fn table(figures: &[Figure], arguments: &Arguments, missed: &mut Missed, measure: impl Fn() -> Result<Vec<f64>>) -> Result<()> {
    let mut runs = Vec::new();
    for _ in 0..arguments.runs()? {
        let run = measure()?;
        if run.len() != figures.len() {
            return Err("a measurement printed other figures than it has".into());
        }
        runs.push(run);
    }
    println!("| figure | median of {} | lowest | highest | aim |", runs.len());
    println!("| --- | --- | --- | --- | --- |");
    for (i, Figure { what, decimals, aim }) in figures.iter().enumerate() {
        let (median, lowest, highest) = spread(runs.iter().map(|run| run[i]));
        let aim = missed.check(what, median, *aim, arguments);
        println!("| {what} | {median:.decimals$} | {lowest:.decimals$} | {highest:.decimals$} | {aim} |");
    }
    Ok(())
}

fn child(measure: &str, options: &[&str]) -> Result<Child> {
    Ok(Command::new(std::env::current_exe()?).arg("--measure").arg(measure).args(options).stdout(Stdio::piped()).spawn()?)
}

/// One measurement in a process of its own; the figures that it prints.
fn run(measure: &str, options: &[&str]) -> Result<Vec<f64>> {
    let output = child(measure, options)?.wait_with_output()?;
    if !output.status.success() {
        return Err(format!("{measure} {options:?} failed").into());
    }
    Ok(String::from_utf8(output.stdout)?.split_whitespace().map(str::parse).collect::<std::result::Result<_, _>>()?)
}

fn throughput(arguments: &Arguments, missed: &mut Missed) -> Result<()> {
    println!("{}\n", measures::QUERY);
    let intervals: &[&str] = if arguments.quick() { &["10 s"] } else { &["10 s", "1 s", "0"] };
    let seconds = arguments.seconds()?.to_string();
    let memory = arguments.value("--memory").unwrap_or("2 GiB");
    // In turn, so that what else the machine does hits all alike.
    let mut measured: Vec<Vec<Vec<f64>>> = vec![Vec::new(); intervals.len()];
    for _ in 0..arguments.runs()? {
        for (interval, measured) in intervals.iter().zip(&mut measured) {
            measured.push(run("throughput", &["--interval", interval, "--seconds", &seconds, "--memory", memory])?);
        }
    }
    println!("| checkpoints | M bids/s, median | lowest | highest | CPU s/s | completed checkpoints | peak resident MiB | aim |");
    println!("| --- | --- | --- | --- | --- | --- | --- | --- |");
    let mut at_10_s = 0.0;
    for (interval, runs) in intervals.iter().zip(measured) {
        let at = |i: usize| spread(runs.iter().map(move |run| run[i]));
        let ((rate, lowest, highest), (cpu, ..), (checkpoints, ..), (_, _, peak)) = (at(0), at(1), at(2), at(3));
        let (name, aim) = match *interval {
            "10 s" => {
                at_10_s = rate;
                ("10 s", missed.check("bids/s", rate, Aim::AtLeast(4e6), arguments))
            }
            "1 s" => ("1 s", missed.check("bids/s with checkpoints every 1 s", rate, Aim::AtLeast((at_10_s * 0.9).round()), arguments)),
            _ => ("none", String::new()),
        };
        let million = |rate: f64| format!("{:.2}", rate / 1e6);
        let (rate, lowest, highest) = (million(rate), million(lowest), million(highest));
        println!("| {name} | {rate} | {lowest} | {highest} | {cpu:.2} | {checkpoints} | {peak} | {aim} |");
    }
    Ok(())
}

fn recover(keys: &str) -> Result<Vec<f64>> {
    let dir = tempfile::tempdir()?;
    let folder = dir.path().to_string_lossy().into_owned();
    let mut filling = child("fill", &["--keys", keys, "--dir", &folder])?;
    let mut line = String::new();
    BufReader::new(filling.stdout.take().ok_or("no output")?).read_line(&mut line)?;
    filling.kill()?;
    filling.wait()?;
    if line.trim() != "checkpointed" {
        return Err("the state was not made".into());
    }
    if !Command::new("sync").status()?.success() || std::fs::write("/proc/sys/vm/drop_caches", "1").is_err() {
        println!("The page cache could NOT be dropped: that needs root.\n");
    }
    run("recover", &["--keys", keys, "--dir", &folder])
}
