//! The body of a download, which has one part of the data in memory at a time, and keeps its turn as long as it has any.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use axum::body::Bytes;
use hyper::body::{Body, Frame, SizeHint};
use tokio::sync::OwnedSemaphorePermit;

/// Bytes of one frame. The server copies a frame before it sends it, so what it holds beside the part is small.
const FRAME: usize = 64 << 10;

/// A part of the data that is being read.
pub(crate) type Reading = Pin<Box<dyn Future<Output = io::Result<Vec<u8>>> + Send>>;

/// Begins to read the part of a number.
pub(crate) type ReadPart = Box<dyn Fn(u64) -> Reading + Send>;

/// A body that reads data part by part, the next one when the client has taken the one before, and sends it in frames of [`FRAME`]
/// bytes. The turn ends when the body and all its frames are dropped. Data that turns out shorter or longer than it was said to be, or
/// that cannot be read, breaks the body off, so that the client does not take it for whole.
pub(crate) struct Download {
    read: ReadPart,
    reading: Option<Reading>,
    /// Rest of the part that is being sent.
    part: Bytes,
    /// Number of the next part.
    next: u64,
    /// Bytes that are still to be sent.
    left: u64,
    turn: Arc<OwnedSemaphorePermit>,
}

/// Data, and the turn that allows it to be in memory.
struct Held {
    data: Vec<u8>,
    _turn: Arc<OwnedSemaphorePermit>,
}

impl AsRef<[u8]> for Held {
    fn as_ref(&self) -> &[u8] {
        &self.data
    }
}

impl Download {
    /// Sends data of `bytes` bytes, of which the part 0 is `first`.
    pub(crate) fn new(
        first: Vec<u8>,
        bytes: u64,
        read: ReadPart,
        turn: OwnedSemaphorePermit,
    ) -> Self {
        let turn = Arc::new(turn);
        Self {
            read,
            reading: None,
            part: held(first, &turn),
            next: 1,
            left: bytes,
            turn,
        }
    }

    /// Reads the next part, if the one before was sent.
    fn poll_part(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        while self.part.is_empty() {
            let reading = self.reading.get_or_insert_with(|| (self.read)(self.next));
            let Poll::Ready(part) = reading.as_mut().poll(context) else {
                return Poll::Pending;
            };
            self.reading = None;
            self.next += 1;
            self.part = held(part?, &self.turn);
        }
        Poll::Ready(Ok(()))
    }
}

fn held(data: Vec<u8>, turn: &Arc<OwnedSemaphorePermit>) -> Bytes {
    Bytes::from_owner(Held {
        data,
        _turn: Arc::clone(turn),
    })
}

impl Body for Download {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<io::Result<Frame<Bytes>>>> {
        if self.left == 0 {
            return Poll::Ready(None);
        }
        match self.poll_part(context) {
            Poll::Pending => return Poll::Pending,
            Poll::Ready(Err(error)) => return Poll::Ready(Some(Err(error))),
            Poll::Ready(Ok(())) => {}
        }
        let length = self.part.len().min(FRAME);
        let frame = self.part.split_to(length);
        let Some(left) = self.left.checked_sub(length as u64) else {
            let error = io::Error::other("the data is longer than it was said to be");
            return Poll::Ready(Some(Err(error)));
        };
        self.left = left;
        Poll::Ready(Some(Ok(Frame::data(frame))))
    }

    fn is_end_stream(&self) -> bool {
        self.left == 0
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.left)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use tokio::sync::Semaphore;

    use super::*;

    fn next(download: &mut Download) -> Option<io::Result<Bytes>> {
        let mut context = Context::from_waker(std::task::Waker::noop());
        match Pin::new(download).poll_frame(&mut context) {
            Poll::Ready(frame) => {
                frame.map(|frame| frame.map(|frame| frame.into_data().expect("data")))
            }
            Poll::Pending => panic!("it is all there"),
        }
    }

    /// A download of so many bytes, of these parts, and the numbers of those that it has read.
    fn download(
        bytes: usize,
        parts: &'static [&'static [u8]],
        turn: OwnedSemaphorePermit,
    ) -> (Download, Arc<Mutex<Vec<u64>>>) {
        let numbers = Arc::new(Mutex::new(Vec::new()));
        let log = Arc::clone(&numbers);
        let read: ReadPart = Box::new(move |number| {
            log.lock().expect("no panic").push(number);
            let part = usize::try_from(number).expect("small");
            let part = parts.get(part).map(|part| part.to_vec());
            let gone = || io::Error::other("it is gone");
            Box::pin(std::future::ready(part.ok_or_else(gone)))
        });
        let bytes = u64::try_from(bytes).expect("small");
        let first = parts[0].to_vec();
        (Download::new(first, bytes, read, turn), numbers)
    }

    fn turns() -> (Arc<Semaphore>, OwnedSemaphorePermit) {
        let turns = Arc::new(Semaphore::new(1));
        let turn = Arc::clone(&turns).try_acquire_owned();
        (turns, turn.expect("a free turn"))
    }

    #[test]
    fn parts_are_read_one_at_a_time_and_a_turn_lasts_until_the_last_frame_is_dropped() {
        const FIRST: &[u8] = &[1; FRAME + 1];
        let (turns, turn) = turns();
        let (mut download, read) = download(FRAME + 3, &[FIRST, b"", b"ab"], turn);
        assert_eq!(download.size_hint().exact(), Some(FRAME as u64 + 3));
        let first = next(&mut download).expect("a frame").expect("data");
        let second = next(&mut download).expect("a frame").expect("data");
        assert_eq!([&*first, &*second].concat(), FIRST);
        assert!(read.lock().expect("no panic").is_empty(), "it is not sent");
        let last = next(&mut download).expect("a frame").expect("data");
        assert_eq!(&*last, b"ab");
        assert_eq!(*read.lock().expect("no panic"), [1, 2]);
        assert!(download.is_end_stream() && next(&mut download).is_none());
        drop((download, first, second));
        assert_eq!(turns.available_permits(), 0);
        drop(last);
        assert_eq!(turns.available_permits(), 1);
    }

    #[test]
    fn data_of_another_length_breaks_the_body_off() {
        let (_turns, turn) = turns();
        let (mut shorter, _) = download(3, &[b"a", b"b"], turn);
        for part in [b"a", b"b"] {
            let frame = next(&mut shorter).expect("a frame");
            assert_eq!(&*frame.expect("data"), part);
        }
        let error = next(&mut shorter).expect("an error").expect_err("gone");
        assert_eq!(error.to_string(), "it is gone");
        let (_turns, turn) = turns();
        let (mut longer, _) = download(1, &[b"ab"], turn);
        let error = next(&mut longer).expect("an error").expect_err("too long");
        assert!(error.to_string().contains("longer"), "{error}");
    }

    #[test]
    fn an_empty_download_ends_its_turn() {
        let (turns, turn) = turns();
        let (mut download, _) = download(0, &[b""], turn);
        assert!(next(&mut download).is_none());
        drop(download);
        assert_eq!(turns.available_permits(), 1);
    }
}
