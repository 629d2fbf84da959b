//! The terminal: keys, frames, and its state before.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use ratatui::crossterm::event::{self, Event, KeyCode, KeyEventKind, KeyModifiers};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

use crate::state::{Key, State};
use crate::tally::Tally;

/// Longest time between two frames.
const FRAME: Duration = Duration::from_millis(250);

/// What is shown, and when to end.
pub struct Screen<'a> {
    /// Counts, which the feed changes.
    pub tally: &'a Mutex<Tally>,
    /// Returns the status: what is watched, and what was lost.
    pub status: &'a dyn Fn() -> String,
    /// Returns true if the program has to end, for example on a signal.
    pub is_over: &'a dyn Fn() -> bool,
}

impl std::fmt::Debug for Screen<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Screen").finish_non_exhaustive()
    }
}

/// Draws until the user or [`Screen::is_over`] ends it. The terminal is restored at the end, on an error and on a
/// panic of any thread.
///
/// # Errors
///
/// The terminal cannot be read or written.
pub fn run(live: &Screen<'_>) -> io::Result<()> {
    // Its panic hook restores the terminal, whichever thread panics.
    let mut terminal = ratatui::try_init()?;
    let restore = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        PANICKED.store(true, Ordering::Release);
        restore(panic);
    }));
    let ended = follow(&mut terminal, live);
    let restored = ratatui::try_restore();
    match PANICKED.load(Ordering::Acquire) {
        true => Err(io::Error::other(
            "a thread of the engine failed; see the message above",
        )),
        false => ended.and(restored),
    }
}

/// Set when a thread has panicked: nothing is drawn over its message.
static PANICKED: AtomicBool = AtomicBool::new(false);

fn follow(terminal: &mut ratatui::DefaultTerminal, live: &Screen<'_>) -> io::Result<()> {
    let mut state = State::default();
    while !state.is_ended && !(live.is_over)() && !PANICKED.load(Ordering::Acquire) {
        let status = (live.status)();
        {
            let mut tally = live.tally.lock().unwrap_or_else(PoisonError::into_inner);
            tally.tick(Instant::now());
            terminal.draw(|frame| crate::draw(frame, &tally, &mut state, &status))?;
        }
        if has_hung_up()? {
            return Ok(());
        }
        press_all(&mut state)?;
    }
    Ok(())
}

/// Takes the keys that were pressed since. crossterm reads several at once: what it keeps does not make the terminal
/// readable, and would wait for the next frame.
fn press_all(state: &mut State) -> io::Result<()> {
    let begun = Instant::now();
    // A pasted text must not keep the screen from being drawn.
    while !state.is_ended && begun.elapsed() < FRAME {
        match event::poll(Duration::ZERO) {
            Ok(false) => break,
            // A signal; the caller looks whether it asks for the end.
            Err(error) if error.kind() == io::ErrorKind::Interrupted => break,
            other => other?,
        };
        if let Event::Key(pressed) = event::read()?
            && pressed.kind != KeyEventKind::Release
            && let Some(key) = key(pressed.code, pressed.modifiers)
        {
            state.press(key);
        }
    }
    Ok(())
}

/// Waits for a key, a signal or the time of the next frame. Returns true if the terminal is gone.
///
/// crossterm never returns from a read of a terminal that has hung up, so it must not be asked then.
fn has_hung_up() -> io::Result<bool> {
    let stdin = io::stdin();
    let mut fds = [PollFd::new(&stdin, PollFlags::IN)];
    let limit = Timespec {
        tv_sec: 0,
        tv_nsec: FRAME.subsec_nanos().into(),
    };
    match poll(&mut fds, Some(&limit)) {
        Ok(_) => Ok(fds[0].revents().intersects(PollFlags::HUP | PollFlags::ERR)),
        Err(Errno::INTR) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

fn key(code: KeyCode, modifiers: KeyModifiers) -> Option<Key> {
    /// Rows of PageUp and PageDown.
    const PAGE: i32 = 10;
    Some(match code {
        KeyCode::Char('c') if modifiers.contains(KeyModifiers::CONTROL) => Key::Interrupt,
        KeyCode::Char(c) => Key::Char(c),
        KeyCode::Backspace => Key::Backspace,
        KeyCode::Enter => Key::Enter,
        KeyCode::Esc => Key::Escape,
        KeyCode::Tab => Key::Tab,
        KeyCode::Up => Key::Move(-1),
        KeyCode::Down => Key::Move(1),
        KeyCode::PageUp => Key::Move(-PAGE),
        KeyCode::PageDown => Key::Move(PAGE),
        _ => return None,
    })
}
