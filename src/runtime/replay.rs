//! Where a connector's reader stood at each barrier, so that a job that is restarted shows nothing older than what was seen of it.

use std::collections::VecDeque;
use std::sync::Arc;

use parking_lot::Mutex;

use crate::sources::Splits;
use crate::stream::BarrierNumber;

/// Where the splits of one subtask stood at the last barriers. The subtask writes it; the job manager reads it when the job fails.
#[derive(Debug, Default)]
pub struct SplitHistory(Mutex<VecDeque<(BarrierNumber, Splits)>>);

impl SplitHistory {
    /// Notes where the splits stand at `barrier`, the newest so far.
    pub fn record(&self, barrier: BarrierNumber, splits: Splits) {
        self.0.lock().push_back((barrier, splits));
    }

    /// Where they stood at `barrier`; `None` where that is not known, or no longer.
    pub fn at(&self, barrier: BarrierNumber) -> Option<Splits> {
        self.0.lock().iter().find(|(number, _)| *number == barrier).map(|(_, splits)| splits.clone())
    }

    /// Nobody asks for barriers before `barrier` any more.
    pub fn forget_before(&self, barrier: BarrierNumber) {
        let mut known = self.0.lock();
        while known.front().is_some_and(|(number, _)| *number < barrier) {
            known.pop_front();
        }
    }
}

/// What a connector subtask needs to know of the runs before, and tells the ones that follow.
#[derive(Debug)]
pub struct Replay {
    pub history: Arc<SplitHistory>,
    /// Where all splits of the scan stood at the newest barrier that readers have seen; `None` where they have seen nothing, or once it has been reached.
    pub target: Option<Splits>,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sources::SplitState;

    #[test]
    fn a_barrier_is_known_until_it_is_forgotten() {
        let at = |offset: &str| vec![SplitState { split: "0".into(), offset: offset.into() }];
        let history = SplitHistory::default();
        for (barrier, offset) in [(3, "a"), (5, "b"), (6, "c")] {
            history.record(barrier, at(offset).into());
        }
        let known = |barrier| history.at(barrier).map(|splits| splits.open);
        assert_eq!(known(5), Some(at("b")));
        assert_eq!(known(4), None);
        history.forget_before(5);
        assert_eq!((known(3), known(5)), (None, Some(at("b"))));
    }
}
