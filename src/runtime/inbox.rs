//! The edge between two subtasks: one inbox per receiver, with a queue per input that is bounded in bytes.
//!
//! # Invariants
//! - Elements of one input arrive in the order in which they were sent.
//! - A batch waits for room in its input's queue; barriers, watermarks and the end never wait, so that a barrier that was sent to one output is always sent to all.
//! - A receiver that is gone makes `send` fail with [`Closed`]; it never blocks.

use std::collections::VecDeque;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::Notify;

use crate::state::memory_pool::{Charge, MemoryPool};
use crate::stream::Element;

/// The bytes that one input's queue holds before its sender waits.
pub const INPUT_CAPACITY_BYTES: usize = 4 << 20;

/// The receiver is gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Closed;

#[derive(Debug)]
struct Queue {
    elements: VecDeque<(Element, usize)>,
    bytes: usize,
    /// How many senders are still there; with none and nothing queued, the input is at its end.
    sender: bool,
}

#[derive(Debug)]
struct State {
    queues: Vec<Queue>,
    closed: bool,
    /// The queue to look at first, so that no input starves another.
    next: usize,
}

#[derive(Debug)]
struct Shared {
    state: Mutex<State>,
    readable: Notify,
    /// One for each input: its sender waits here for room.
    writable: Vec<Notify>,
    /// What waits in all queues, as the memory pool counts it.
    memory: Charge,
}

/// The receiving end.
#[derive(Debug)]
pub struct Inbox(Arc<Shared>);

/// The sending end of one input.
#[derive(Debug)]
pub struct EdgeSender {
    shared: Arc<Shared>,
    input: usize,
}

/// An inbox with `inputs` inputs, and a sender for each. What waits in it is counted in `memory`.
pub fn inbox(inputs: usize, memory: &Arc<MemoryPool>) -> (Inbox, Vec<EdgeSender>) {
    let shared = Arc::new(Shared {
        state: Mutex::new(State {
            queues: (0..inputs).map(|_| Queue { elements: VecDeque::new(), bytes: 0, sender: true }).collect(),
            closed: false,
            next: 0,
        }),
        readable: Notify::new(),
        writable: (0..inputs).map(|_| Notify::new()).collect(),
        memory: memory.charge(),
    });
    let senders = (0..inputs).map(|input| EdgeSender { shared: shared.clone(), input }).collect();
    (Inbox(shared), senders)
}

impl EdgeSender {
    /// Sends `element`; a batch waits for room. Cancel-safe: a send that was dropped while it waited sent nothing.
    pub async fn send(&self, element: Element) -> Result<(), Closed> {
        let size = match &element {
            Element::Batch(batch) => batch.size(),
            _ => 0,
        };
        loop {
            let room = self.shared.writable[self.input].notified();
            {
                let mut state = self.shared.state.lock();
                if state.closed {
                    return Err(Closed);
                }
                let queue = &mut state.queues[self.input];
                if size == 0 || queue.bytes == 0 || queue.bytes + size <= INPUT_CAPACITY_BYTES {
                    queue.bytes += size;
                    queue.elements.push_back((element, size));
                    self.shared.memory.add(size);
                    break;
                }
            }
            room.await;
        }
        self.shared.readable.notify_one();
        Ok(())
    }
}

impl Drop for EdgeSender {
    fn drop(&mut self) {
        self.shared.state.lock().queues[self.input].sender = false;
        self.shared.readable.notify_one();
    }
}

impl Inbox {
    /// The number of inputs.
    pub fn inputs(&self) -> usize {
        self.0.writable.len()
    }

    /// The next element of an input that is not `blocked`, if one is there.
    ///
    /// An input whose sender is gone without an [`Element::End`] gives nothing more: its subtask failed, and the group is about to restart.
    pub fn try_recv(&self, blocked: &[bool]) -> Option<(usize, Element)> {
        let mut state = self.0.state.lock();
        let inputs = state.queues.len();
        for step in 0..inputs {
            let input = (state.next + step) % inputs;
            if blocked[input] {
                continue;
            }
            if let Some((element, size)) = state.queues[input].elements.pop_front() {
                let queue = &mut state.queues[input];
                queue.bytes -= size;
                self.0.memory.subtract(size);
                state.next = (input + 1) % inputs;
                drop(state);
                if size > 0 {
                    self.0.writable[input].notify_one();
                }
                return Some((input, element));
            }
        }
        None
    }

    /// The next element of an input that is not `blocked`. Cancel-safe.
    pub async fn recv(&self, blocked: &[bool]) -> (usize, Element) {
        loop {
            let readable = self.0.readable.notified();
            if let Some(element) = self.try_recv(blocked) {
                return element;
            }
            readable.await;
        }
    }

    /// Returns when something is sent. The caller looks with [`Inbox::try_recv`] before it waits.
    pub async fn readable(&self) {
        self.0.readable.notified().await;
    }

    /// The bytes that wait in all queues.
    pub fn queued_bytes(&self) -> usize {
        self.0.state.lock().queues.iter().map(|queue| queue.bytes).sum()
    }
}

impl Drop for Inbox {
    fn drop(&mut self) {
        let mut state = self.0.state.lock();
        state.closed = true;
        for queue in &mut state.queues {
            queue.elements.clear();
            queue.bytes = 0;
        }
        self.0.memory.set(0);
        drop(state);
        for writable in &self.0.writable {
            writable.notify_one();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use arrow::array::{ArrayRef, Int64Array, RecordBatch, RecordBatchOptions};
    use arrow::datatypes::Schema;

    use super::*;
    use crate::stream::Batch;

    fn rows(count: usize) -> Element {
        let column: ArrayRef = Arc::new(Int64Array::from_iter_values(0..count as i64));
        Element::Batch(Batch::insert(RecordBatch::try_from_iter([("v", column)]).unwrap()))
    }

    #[tokio::test]
    async fn a_full_queue_holds_its_sender_and_no_other() {
        let (inbox, senders) = inbox(2, &MemoryPool::new(0));
        let large = 400_000; // 3.2 MB: one fits, two do not
        senders[0].send(rows(large)).await.unwrap();
        let waiting = tokio::time::timeout(Duration::from_millis(20), senders[0].send(rows(large))).await;
        assert!(waiting.is_err(), "a second large batch must wait");
        senders[0].send(Element::End).await.unwrap();
        senders[1].send(rows(1)).await.unwrap();
        assert!(matches!(inbox.recv(&[false, false]).await, (0, Element::Batch(_))));
        assert!(matches!(inbox.recv(&[true, false]).await, (1, Element::Batch(_))));
        assert!(matches!(inbox.recv(&[false, false]).await, (0, Element::End)));
        senders[0].send(rows(large)).await.unwrap();
    }

    #[tokio::test]
    async fn rows_without_columns_wait_for_room_too() {
        let rows = |count: usize| {
            let options = RecordBatchOptions::new().with_row_count(Some(count));
            Element::Batch(Batch::insert(RecordBatch::try_new_with_options(Arc::new(Schema::empty()), vec![], &options).unwrap()))
        };
        let (inbox, senders) = inbox(1, &MemoryPool::new(0));
        senders[0].send(rows(INPUT_CAPACITY_BYTES)).await.unwrap();
        let waiting = tokio::time::timeout(Duration::from_millis(20), senders[0].send(rows(1))).await;
        assert!(waiting.is_err(), "a second batch must wait");
        assert!(matches!(inbox.recv(&[false]).await, (0, Element::Batch(batch)) if batch.num_rows() == INPUT_CAPACITY_BYTES));
        senders[0].send(rows(1)).await.unwrap();
        assert!(matches!(inbox.recv(&[false]).await, (0, Element::Batch(batch)) if batch.num_rows() == 1));
    }

    #[tokio::test]
    async fn a_blocked_input_gives_nothing() {
        let memory = MemoryPool::new(0);
        let (inbox, senders) = inbox(1, &memory);
        senders[0].send(rows(1)).await.unwrap();
        assert!(inbox.try_recv(&[true]).is_none());
        assert_eq!(memory.used(), inbox.queued_bytes());
        assert!(memory.used() > 0);
        assert!(inbox.try_recv(&[false]).is_some());
        assert_eq!(memory.used(), 0);
        senders[0].send(rows(1)).await.unwrap();
        drop(inbox);
        assert_eq!(memory.used(), 0);
    }

    #[tokio::test]
    async fn a_receiver_that_is_gone_fails_a_waiting_send() {
        let (inbox, mut senders) = inbox(1, &MemoryPool::new(0));
        let sender = senders.remove(0);
        sender.send(rows(500_000)).await.unwrap();
        let waiting = tokio::spawn(async move { sender.send(rows(500_000)).await });
        tokio::time::sleep(Duration::from_millis(10)).await;
        drop(inbox);
        assert_eq!(waiting.await.unwrap(), Err(Closed));
    }
}
