//! A query's rows on their way to the client, with what must end them: the statement's deadline, and a panic in the code that makes them.

use std::any::Any;
use std::panic::AssertUnwindSafe;
use std::pin::Pin;
use std::task::{Context, Poll};

use arrow::array::RecordBatch;
use arrow::datatypes::SchemaRef;
use datafusion::error::{DataFusionError, Result as DataFusionResult};
use datafusion::execution::{RecordBatchStream, SendableRecordBatchStream};
use futures::Stream;
use tokio::time::{Instant, Sleep};
use weir_catalog::{Error, SqlState};

/// `57014`.
pub(super) fn timed_out() -> Error {
    Error::new(SqlState::QUERY_CANCELED, "canceling statement due to statement timeout")
}

/// `XX000` for a panic while a statement ran.
pub(super) fn panicked(panic: &(dyn Any + Send)) -> Error {
    let text = panic.downcast_ref::<&str>().copied().or_else(|| panic.downcast_ref::<String>().map(String::as_str));
    let error = Error::internal("the statement ran into a defect of weir");
    match text {
        Some(text) => error.with_detail(format!("It panicked: {text}.")),
        None => error,
    }
}

/// The rows of `inner`, which end with an error at `deadline`, or where making them panics.
pub(super) fn guard(inner: SendableRecordBatchStream, deadline: Option<Instant>) -> SendableRecordBatchStream {
    let schema = inner.schema();
    let deadline = deadline.map(|deadline| Box::pin(tokio::time::sleep_until(deadline)));
    Box::pin(Guarded { schema, inner: Some(inner), deadline })
}

struct Guarded {
    schema: SchemaRef,
    /// `None` once it is over: what is left of a query that failed is dropped at once.
    inner: Option<SendableRecordBatchStream>,
    deadline: Option<Pin<Box<Sleep>>>,
}

impl Stream for Guarded {
    type Item = DataFusionResult<RecordBatch>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let guarded = &mut *self;
        let Some(inner) = &mut guarded.inner else { return Poll::Ready(None) };
        if let Some(deadline) = &mut guarded.deadline
            && Future::poll(deadline.as_mut(), context).is_ready()
        {
            guarded.inner = None;
            return Poll::Ready(Some(Err(DataFusionError::External(Box::new(timed_out())))));
        }
        match std::panic::catch_unwind(AssertUnwindSafe(|| inner.as_mut().poll_next(context))) {
            Ok(Poll::Ready(None)) => {
                guarded.inner = None;
                Poll::Ready(None)
            }
            Ok(polled) => polled,
            Err(panic) => {
                guarded.inner = None;
                Poll::Ready(Some(Err(DataFusionError::External(Box::new(panicked(panic.as_ref()))))))
            }
        }
    }
}

impl RecordBatchStream for Guarded {
    fn schema(&self) -> SchemaRef {
        self.schema.clone()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use arrow::datatypes::Schema;
    use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
    use futures::StreamExt;

    use super::*;
    use crate::operators::error::from_datafusion;

    fn guarded(
        rows: impl Stream<Item = DataFusionResult<RecordBatch>> + Send + 'static,
        deadline: Option<Instant>,
    ) -> SendableRecordBatchStream {
        guard(Box::pin(RecordBatchStreamAdapter::new(Arc::new(Schema::empty()), rows)), deadline)
    }

    #[tokio::test]
    async fn a_query_that_makes_no_row_ends_at_its_deadline() {
        let mut rows = guarded(futures::stream::pending(), Some(Instant::now() + Duration::from_millis(5)));
        let error = from_datafusion(rows.next().await.expect("an error").expect_err("an error"));
        assert_eq!(error.code(), &SqlState::QUERY_CANCELED);
        assert!(rows.next().await.is_none());
    }

    #[tokio::test]
    async fn a_panic_is_an_error_of_the_statement() {
        let batch = RecordBatch::new_empty(Arc::new(Schema::empty()));
        let rows = futures::stream::iter([Some(batch), None]).map(|batch| Ok(batch.expect("there is no second batch")));
        let mut rows = guarded(rows, None);
        assert!(rows.next().await.expect("a batch").is_ok());
        let error = from_datafusion(rows.next().await.expect("an error").expect_err("an error"));
        assert_eq!(error.code(), &SqlState::INTERNAL_ERROR);
        assert!(error.detail().is_some_and(|detail| detail.contains("there is no second batch")), "{error}");
        assert!(rows.next().await.is_none());
    }
}
