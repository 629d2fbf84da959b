//! The body of a download, which keeps its turn as long as its data is in memory.

use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll};

use axum::body::Bytes;
use hyper::body::{Body, Frame, SizeHint};
use tokio::sync::OwnedSemaphorePermit;

/// Bytes of one frame. The server copies a frame before it sends it, so what it holds beside the data is small.
const FRAME: usize = 64 << 10;

/// A body that is sent in frames of [`FRAME`] bytes. The turn ends when the body and all its frames are dropped.
pub(crate) struct Download {
    rest: Bytes,
}

/// Data, and the turn that allows it to be in memory.
struct Held {
    data: Vec<u8>,
    _turn: OwnedSemaphorePermit,
}

impl AsRef<[u8]> for Held {
    fn as_ref(&self) -> &[u8] {
        &self.data
    }
}

impl Download {
    pub(crate) fn new(data: Vec<u8>, turn: OwnedSemaphorePermit) -> Self {
        Self {
            rest: Bytes::from_owner(Held { data, _turn: turn }),
        }
    }
}

impl Body for Download {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let length = self.rest.len().min(FRAME);
        let frame = self.rest.split_to(length);
        Poll::Ready((length > 0).then(|| Ok(Frame::data(frame))))
    }

    fn is_end_stream(&self) -> bool {
        self.rest.is_empty()
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.rest.len() as u64)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use tokio::sync::Semaphore;

    use super::*;

    fn next(download: &mut Download) -> Option<Bytes> {
        let mut context = Context::from_waker(std::task::Waker::noop());
        match Pin::new(download).poll_frame(&mut context) {
            Poll::Ready(frame) => frame.map(|frame| {
                let Ok(frame) = frame;
                frame.into_data().expect("data")
            }),
            Poll::Pending => panic!("it is all there"),
        }
    }

    #[test]
    fn a_turn_lasts_until_the_last_frame_is_dropped() {
        let turns = Arc::new(Semaphore::new(1));
        let turn = Arc::clone(&turns).try_acquire_owned().expect("a free turn");
        let data: Vec<u8> = (0..=255).cycle().take(FRAME + 1).collect();
        let mut download = Download::new(data.clone(), turn);
        assert_eq!(download.size_hint().exact(), Some(data.len() as u64));
        let first = next(&mut download).expect("a frame");
        let last = next(&mut download).expect("a frame");
        assert_eq!([&*first, &*last].concat(), data);
        assert!(download.is_end_stream() && next(&mut download).is_none());
        drop((download, first));
        assert_eq!(turns.available_permits(), 0);
        drop(last);
        assert_eq!(turns.available_permits(), 1);
    }

    #[test]
    fn an_empty_download_ends_its_turn() {
        let turns = Arc::new(Semaphore::new(1));
        let turn = Arc::clone(&turns).try_acquire_owned().expect("a free turn");
        let mut download = Download::new(Vec::new(), turn);
        assert!(next(&mut download).is_none());
        drop(download);
        assert_eq!(turns.available_permits(), 1);
    }
}
