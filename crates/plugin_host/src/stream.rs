//! An open source: the events of its plugin, and the asynchronous ones of others.

use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use plugin::protocol::Reply;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::abi::{Batch, Owner};
use crate::asynchronous::Queue;
use crate::event::Buffer;
use crate::serve::{Extraction, Loaded, SIGN_OF_LIFE, Sender, reply};

/// A call that returns nothing faster than this did not wait, so that this program has to.
const DID_NOT_WAIT: Duration = Duration::from_millis(1);
/// Time between two calls of a plugin that does not wait.
const PAUSE: Duration = Duration::from_millis(10);

/// An open source.
pub(crate) struct EventStream {
    extraction: Extraction,
    number: u64,
    /// Asynchronous events that wait. Threads of plugins keep the reference for ever.
    queue: &'static Queue,
    /// The cause of a missed event was printed.
    has_told: bool,
}

impl EventStream {
    /// Opens the source, and has plugins add asynchronous events to it.
    pub(crate) fn open(mut extraction: Extraction, params: &str) -> Result<Self, String> {
        let source = extraction.source;
        extraction.plugins[source].plugin.open(params)?;
        let stream = Self {
            extraction,
            number: 0,
            queue: Box::leak(Box::default()),
            has_told: false,
        };
        stream.queue.open();
        let id = stream.extraction.plugins[source].description.id;
        for Loaded {
            plugin,
            description,
        } in stream.adding()
        {
            plugin.start_adding(Box::leak(Box::new(Owner {
                plugin: description.name.clone(),
                names: description.async_events.iter().cloned().collect(),
                source: id,
                queue: stream.queue,
            })))?;
        }
        Ok(stream)
    }

    /// Returns the plugins that add asynchronous events to the source.
    fn adding(&self) -> impl Iterator<Item = &Loaded> {
        let plugins = &self.extraction.plugins;
        let source = &plugins[self.extraction.source].description.source;
        let adding = plugins.iter();
        adding.filter(|loaded| loaded.description.adds_to(source))
    }

    /// Sends events until the source ends, or the other side asks for no more.
    pub(crate) fn run(&mut self, socket: &mut UnixStream) -> Result<(), String> {
        let result = self.follow(socket);
        if result.is_err() {
            self.give_up(socket);
        }
        result
    }

    fn follow(&mut self, socket: &mut UnixStream) -> Result<(), String> {
        let mut said = Instant::now();
        loop {
            let called = Instant::now();
            let batch = self.extraction.plugins[self.extraction.source]
                .plugin
                .next_batch()?;
            // As well before events: the time that the plugin took to make them is not that of the first record.
            if said.elapsed() >= SIGN_OF_LIFE {
                reply(socket, &Reply::Idle)?;
                said = Instant::now();
            }
            match batch {
                Batch::Events { events, is_last } => {
                    self.send(socket, &events).map_err(Unsent::cause)?;
                    said = Instant::now();
                    if is_last {
                        return self.end(socket);
                    }
                }
                Batch::Ended => return self.end(socket),
                Batch::Nothing => {
                    if called.elapsed() < DID_NOT_WAIT {
                        std::thread::sleep(PAUSE);
                    }
                }
            }
            if self.deliver(socket)? {
                said = Instant::now();
            }
            if asks_for_the_end(socket)? {
                return self.end(socket);
            }
        }
    }

    /// Sends the asynchronous events that wait, and what was missed of them. Returns whether there were any.
    fn deliver(&mut self, socket: &mut UnixStream) -> Result<bool, String> {
        let events = Vec::from(self.queue.take());
        if let Err(unsent) = self.send(socket, &events) {
            self.queue.lose(unsent.events);
            return Err(unsent.cause);
        }
        if let Some((missed, cause)) = self.queue.missed() {
            reply(socket, &Reply::Missed(missed))?;
            // The first one of a process tells what is wrong with a plugin; the others are counted.
            if !std::mem::replace(&mut self.has_told, true) {
                eprintln!("tollgate-plugin-host: an asynchronous event was missed: {cause}");
            }
        }
        Ok(!events.is_empty())
    }

    /// Counts the asynchronous events that nobody sees because the source failed.
    fn give_up(&mut self, socket: &mut UnixStream) {
        self.queue.abandon();
        // Fails if the other side is gone, which then counts nothing.
        let _ = self.deliver(socket);
    }

    /// Ends the source after the asynchronous events that came before its end, and those that plugins add while they stop.
    fn end(&mut self, socket: &mut UnixStream) -> Result<(), String> {
        self.deliver(socket)?;
        self.queue.stopping();
        for loaded in self.adding() {
            // Each plugin has the whole deadline.
            reply(socket, &Reply::Idle)?;
            loaded.plugin.stop_adding()?;
        }
        self.queue.close();
        self.deliver(socket)?;
        reply(socket, &Reply::Ended)
    }

    fn send(&mut self, socket: &mut UnixStream, events: &[Buffer]) -> Result<(), Unsent> {
        let mut sender = Sender::new(socket);
        for (sent, event) in events.iter().enumerate() {
            self.number += 1;
            let added = sender.add(self.extraction.record(event, self.number));
            added.map_err(|cause| Unsent {
                events: events.len() - sent,
                cause,
            })?;
        }
        let finished = sender.finish();
        let finished = finished.and_then(|()| self.extraction.tell_unparsed(socket));
        finished.map_err(|cause| Unsent { events: 0, cause })
    }
}

/// Why events were not sent.
struct Unsent {
    /// Number of events that were not: the one that failed, and those after it.
    events: usize,
    cause: String,
}

impl Unsent {
    fn cause(self) -> String {
        self.cause
    }
}

/// Returns true if the other side has closed its direction of the socket, which asks for the end of the source.
fn asks_for_the_end(socket: &UnixStream) -> Result<bool, String> {
    let mut polled = [PollFd::new(socket, PollFlags::RDHUP)];
    match poll(&mut polled, Some(&Timespec::default())) {
        Ok(_) | Err(rustix::io::Errno::INTR) => Ok(!polled[0].revents().is_empty()),
        Err(error) => Err(format!("cannot ask for the state of the socket: {error}")),
    }
}
