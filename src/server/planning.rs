//! Where statements are planned: on their session's task, or beside it where that may take long.

use weir_catalog::{Error, Result, SqlState};
use weir_sql::statement::Parsed;

use super::session::Session;
use crate::seams::spawn::Spawner;

/// The bytes of text above which a statement is parsed and planned beside its session.
///
/// Neither looks up before it is done, and most of it is in libraries: what interrupts a statement can't end it there. The planning of a long one, which may
/// take seconds, is therefore waited for instead: whoever interrupts the statement ends the wait, and what was still being made is thrown away when it is done.
/// That costs a hop to another thread and a copy of the statement, which for short statements would be more than it is worth: their planning takes
/// milliseconds at most.
const LONG: usize = 16 << 10;

impl Session {
    /// What `plan` makes of a statement, given a session like this one but without a transaction.
    pub(super) async fn planned<T: Send + 'static>(
        &self,
        parsed: &Parsed,
        plan: impl FnOnce(&Session, &Parsed) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        if parsed.text.len() <= LONG {
            return plan(self, parsed);
        }
        let (planner, parsed) = (self.planner(), parsed.clone());
        beside(move || plan(&planner, &parsed)).await
    }
}

/// The statements in `script`.
pub(super) async fn parsed(script: &str) -> Result<Vec<Parsed>> {
    if script.len() <= LONG {
        return weir_sql::parser::parse(script);
    }
    let script = script.to_string();
    beside(move || weir_sql::parser::parse(&script)).await
}

/// Does `work` on a thread of its own. Giving up the wait for it is all that is needed: what it gives is forgotten then.
async fn beside<T: Send + 'static>(work: impl FnOnce() -> Result<T> + Send + 'static) -> Result<T> {
    match Spawner::current().spawn_blocking(work).await {
        Ok(done) => done,
        Err(failed) => match failed.try_into_panic() {
            Ok(panic) => std::panic::resume_unwind(panic),
            Err(_) => Err(Error::new(SqlState::ADMIN_SHUTDOWN, "the server is shutting down")),
        },
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;
    use crate::server::interrupts::{Asking, Interrupts};

    #[tokio::test]
    async fn who_waits_for_planning_can_be_interrupted() {
        let (asking, interrupts) = (Asking::default(), Interrupts::default());
        let mut interruption = asking.interruption();
        let (begins, begun) = tokio::sync::oneshot::channel();
        let (goes_on, waits) = mpsc::channel::<()>();
        let planning = beside(move || {
            let _ = begins.send(());
            // As long as the test wants.
            let _ = waits.recv();
            Ok(())
        });
        let asked = async {
            begun.await.expect("it begins");
            asking.cancel();
        };
        let (planned, ()) = tokio::join!(interrupts.run(planning, &mut interruption), asked);
        assert_eq!(planned.unwrap_err().code(), &SqlState::QUERY_CANCELED);
        drop(goes_on);
        assert_eq!(beside(|| Ok(7)).await.unwrap(), 7);
    }
}
