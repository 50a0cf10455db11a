//! Runs a test of the running test binary once more, in a process of its own, with a fault or without one.
//!
//! So the tests that have to catch a fault are the very tests that run every day, not copies of them.
//!
//! # Invariants
//! - A test that was not found, that did not end, or that failed for another reason than the fault, has caught nothing.
//! - What a test meets by chance, a kill at a moment or a change meanwhile, it may miss once: a run that passes is tried again with another seed.
//! - The process ends before the call returns, and with the thread that calls.

use std::io::{Read, Write};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

use super::{Fault, VARIABLE};
use crate::seams::clock::Stopwatch;
use crate::seams::random::Random;

/// A test, and how it is to be run.
#[derive(Clone, Copy, Debug)]
pub struct Scenario {
    /// Its path in the test binary.
    pub test: &'static str,
    /// Variables that make it short.
    pub environment: &'static [(&'static str, &'static str)],
}

/// How long a scenario may take before it counts as one that does not end: many times what it takes on a machine that has nothing else to do.
const PATIENCE: Duration = Duration::from_secs(1800);
/// How often the process is looked at.
const LOOK_EVERY: Duration = Duration::from_millis(20);
/// How many runs a fault may need until it is met.
const RUNS: usize = 3;
/// The variable that fixes what a test draws.
const SEED_VARIABLE: &str = "WEIR_TEST_SEED";
/// How much of a test's output stands in a report, characters.
const REPORTED_CHARACTERS: usize = 6_000;

/// Panics unless `scenario` fails with `fault`, for a reason in which one of `reasons` stands. A run that passes is followed by one with another
/// seed, up to [`RUNS`] in all; a run that fails is the last.
pub fn assert_caught(scenario: Scenario, fault: Fault, reasons: &[&str]) {
    let (name, test) = (fault.name(), scenario.test);
    let mut outcome = run(scenario, Some(fault), None);
    for _ in 1..RUNS {
        if !outcome.passed {
            break;
        }
        let seed = Random::from_entropy().next_u64() >> 16;
        // Past the runner's capture, so that the run can be repeated; there is nothing to do where the terminal is gone.
        drop(writeln!(std::io::stderr(), "{name} was not met by {test}, which is run again with {SEED_VARIABLE}={seed}"));
        outcome = run(scenario, Some(fault), Some(seed));
    }
    let Outcome { passed, output } = outcome;
    assert!(!passed, "{name} is not caught by {test} in {RUNS} runs:\n{}", end_of(&output));
    assert!(
        reasons.iter().any(|reason| output.contains(reason)),
        "{test} fails with {name}, but not because of {reasons:?}:\n{}",
        end_of(&output)
    );
}

/// Panics unless `scenario` passes where no fault is planted.
pub fn assert_passes(scenario: Scenario) {
    let Outcome { passed, output } = run(scenario, None, None);
    assert!(passed, "{} fails without a fault:\n{}", scenario.test, end_of(&output));
}

/// What a test did, and all that it wrote.
struct Outcome {
    passed: bool,
    output: String,
}

fn run(scenario: Scenario, fault: Option<Fault>, seed: Option<u64>) -> Outcome {
    let program = std::env::current_exe().unwrap_or_else(|e| panic!("the running test binary is not known: {e}"));
    let mut command = Command::new(&program);
    command.args([scenario.test, "--exact", "--nocapture", "--test-threads=1"]);
    // A long run of all tests makes its scenarios no longer. What fails because of a fault is no case worth keeping.
    command.env_remove("WEIR_TEST_LONG").env_remove(VARIABLE).env("PROPTEST_DISABLE_FAILURE_PERSISTENCE", "true");
    command.envs(scenario.environment.iter().copied());
    if let Some(fault) = fault {
        command.env(VARIABLE, fault.name());
    }
    if let Some(seed) = seed {
        command.env(SEED_VARIABLE, seed.to_string());
    }
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    // SAFETY: prctl is a plain system call, safe between fork and exec; it touches no memory of the parent.
    unsafe {
        command.pre_exec(|| match libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) {
            0 => Ok(()),
            _ => Err(std::io::Error::last_os_error()),
        });
    }
    let mut process = command.spawn().unwrap_or_else(|e| panic!("{} could not be run: {e}", program.display()));
    let (stdout, stderr) = (process.stdout.take(), process.stderr.take());
    let readers = [std::thread::spawn(move || read(stdout)), std::thread::spawn(move || read(stderr))];
    let status = wait(&mut process);
    let output: String = readers.into_iter().map(|reader| reader.join().unwrap_or_default()).collect();
    let (name, test) = (fault.map_or("no fault", Fault::name), scenario.test);
    let Some(status) = status else { panic!("{test} with {name} did not end within {PATIENCE:?}:\n{}", end_of(&output)) };
    let (passed, failed) = (output.contains("test result: ok. 1 passed"), output.contains("test result: FAILED. 0 passed; 1 failed"));
    assert!(passed != failed && passed == status.success(), "{test} with {name} was not run ({status}):\n{}", end_of(&output));
    Outcome { passed, output }
}

/// Waits for the end; `None` where it had to be killed.
fn wait(process: &mut Child) -> Option<ExitStatus> {
    let stopwatch = Stopwatch::start();
    loop {
        match process.try_wait() {
            Ok(Some(status)) => return Some(status),
            Ok(None) if stopwatch.elapsed() < PATIENCE => std::thread::sleep(LOOK_EVERY),
            Ok(None) | Err(_) => {
                // Errors say that it is gone.
                drop(process.kill());
                drop(process.wait());
                return None;
            }
        }
    }
}

fn read(pipe: Option<impl Read>) -> String {
    let mut bytes = Vec::new();
    if let Some(mut pipe) = pipe {
        // What came before an error is worth reading.
        drop(pipe.read_to_end(&mut bytes));
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

fn end_of(output: &str) -> &str {
    let from = output.char_indices().rev().nth(REPORTED_CHARACTERS).map_or(0, |(at, _)| at);
    &output[from..]
}

/// Makes a test of each line `name: Fault, by SCENARIO, saying ["reason", ...];`, and `fn listed() -> Vec<Fault>`.
#[macro_export]
macro_rules! caught_faults {
    ($($name:ident: $fault:ident, by $scenario:expr, saying $reasons:expr;)*) => {
        $(
            #[test]
            #[cfg_attr(not(feature = "planted-faults"), ignore = "needs the feature planted-faults")]
            fn $name() {
                $crate::seams::faults::catching::assert_caught($scenario, $crate::seams::faults::Fault::$fault, &$reasons);
            }
        )*

        /// The faults that are caught here.
        fn listed() -> Vec<$crate::seams::faults::Fault> {
            vec![$($crate::seams::faults::Fault::$fault),*]
        }
    };
}
