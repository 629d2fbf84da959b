//! Events as they stand in a capture.

use super::blocks::Block;
use crate::Error;
use crate::bytes::Bytes;
use crate::table::EventType;

/// More parameters than any event type has.
pub const MAX_PARAMS: usize = 48;

/// The event is there to tell of state and is not to be shown (`SCAP_DF_STATE_ONLY`).
pub const STATE_ONLY: u32 = 1;

/// One event of a capture.
#[derive(Clone, Copy, Debug)]
pub struct Record<'b> {
    /// Where its block begins, uncompressed.
    pub offset: u64,
    /// Nanoseconds since the epoch.
    pub time_ns: u64,
    /// The thread.
    pub tid: i64,
    /// The processor.
    pub cpu: u16,
    /// Flags of the block.
    pub flags: u32,
    /// Number of the event type.
    pub code: u16,
    count: u32,
    is_old: bool,
    /// Lengths of the parameters, and the parameters.
    body: &'b [u8],
}

/// The parameters of an event: their lengths and their bytes, which fit each other.
#[derive(Clone, Copy, Debug)]
pub struct Params<'b> {
    lens: &'b [u8],
    data: &'b [u8],
    is_large: bool,
}

/// How the event's block begins.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shape {
    pub(crate) has_flags: bool,
    pub(crate) is_old: bool,
}

/// Where the number of an event's type stands in a block's body: behind processor, time, thread and
/// length.
pub(crate) const CODE: usize = 2 + 8 + 8 + 4;
/// The same where the flags of the block come first.
pub(crate) const FLAGGED_CODE: usize = CODE + 4;

impl<'b> Record<'b> {
    #[inline]
    pub(crate) fn parse(block: &Block<'b>, shape: Shape) -> Result<Self, Error> {
        let mut bytes = Bytes::new(block.body);
        let short = || block.corrupt("an event that is shorter than its header");
        let cpu = bytes.u16().ok_or_else(short)?;
        let flags = if shape.has_flags {
            bytes.u32().ok_or_else(short)?
        } else {
            0
        };
        let available = bytes.len();
        let time_ns = bytes.u64().ok_or_else(short)?;
        let tid = bytes.i64().ok_or_else(short)?;
        let len = bytes.u32().ok_or_else(short)?;
        let code = bytes.u16().ok_or_else(short)?;
        let count = if shape.is_old {
            0
        } else {
            bytes.u32().ok_or_else(short)?
        };
        let header = available - bytes.len();
        let body = usize::try_from(len)
            .ok()
            .and_then(|len| len.checked_sub(header))
            .and_then(|len| bytes.take(len));
        let Some(body) = body else {
            let problem = format!("an event of {len} bytes in a block with room for {available}");
            return Err(block.corrupt(problem));
        };
        Ok(Self {
            offset: block.offset,
            time_ns,
            tid,
            cpu,
            flags,
            code,
            count,
            is_old: shape.is_old,
            body,
        })
    }

    /// The event type; `None` if it is newer than this program.
    #[must_use]
    pub fn ty(&self) -> Option<&'static EventType> {
        EventType::of(self.code)
    }

    /// Whether the event only tells of state.
    #[must_use]
    pub fn is_state_only(&self) -> bool {
        self.flags & STATE_ONLY != 0
    }

    /// Finds the parameters of an event of a known type.
    ///
    /// # Errors
    ///
    /// If their lengths do not fit the event.
    pub fn params(&self) -> Result<Params<'b>, Error> {
        match self.ty() {
            Some(ty) => self.params_of(ty),
            None => Ok(Params::NONE),
        }
    }

    /// The same, of an event whose type is known to the caller.
    #[inline]
    pub(crate) fn params_of(&self, ty: &EventType) -> Result<Params<'b>, Error> {
        if self.is_old {
            return self.old_params(ty);
        }
        let count = usize::try_from(self.count).unwrap_or(usize::MAX);
        // Further ones are those of a newer version.
        let wanted = count.min(ty.params.len()).min(MAX_PARAMS);
        match split(self.body, count, wanted, ty.is_large) {
            Some((params, _)) => Ok(params),
            None => Err(self.corrupt("parameters that are longer than their event")),
        }
    }

    /// Old captures do not say how many parameters there are: as many as fill the event.
    fn old_params(&self, ty: &EventType) -> Result<Params<'b>, Error> {
        // These were written with a length that is three too large.
        let surplus = if matches!(ty.name, "notification" | "infra") {
            3
        } else {
            0
        };
        let body = &self.body[..self.body.len().saturating_sub(surplus)];
        (0..=ty.params.len().min(MAX_PARAMS))
            .rev()
            .find_map(|count| match split(body, count, count, ty.is_large) {
                Some((params, used)) if used == body.len() => Some(params),
                _ => None,
            })
            .ok_or_else(|| self.corrupt("parameters that do not fill their event"))
    }

    fn corrupt(&self, problem: &str) -> Error {
        let name = self.ty().map_or("event", |ty| ty.name);
        Error::Corrupt {
            offset: self.offset,
            problem: format!("{problem} ({name})"),
        }
    }
}

/// Finds the first `wanted` of `count` parameters; also how many bytes all take with their lengths.
#[inline]
fn split(body: &[u8], count: usize, wanted: usize, large: bool) -> Option<(Params<'_>, usize)> {
    let width = width(large);
    let (lens, data) = body.split_at_checked(count.checked_mul(width)?)?;
    let params = Params {
        lens: &lens[..wanted * width],
        data,
        is_large: large,
    };
    let end = params.end(wanted);
    (end <= data.len()).then_some((params, lens.len() + end))
}

/// Bytes of a length.
const fn width(is_large: bool) -> usize {
    if is_large { 4 } else { 2 }
}

impl<'b> Params<'b> {
    /// No parameters.
    pub const NONE: Self = Self {
        lens: &[],
        data: &[],
        is_large: false,
    };

    /// How many there are.
    #[must_use]
    #[inline]
    pub fn len(&self) -> usize {
        if self.is_large {
            self.lens.len() / 4
        } else {
            self.lens.len() / 2
        }
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.lens.is_empty()
    }

    /// The bytes of one; `None` if the capture does not have it.
    #[must_use]
    #[inline]
    pub fn get(&self, at: usize) -> Option<&'b [u8]> {
        if self.is_large {
            return self.get_large(at);
        }
        let (before, own) = self.lens.get(..at * 2 + 2)?.split_at(at * 2);
        let start = small_sum(before);
        self.data.get(start..start + small_sum(own))
    }

    #[cold]
    fn get_large(&self, at: usize) -> Option<&'b [u8]> {
        let (before, own) = self.lens.get(..at * 4 + 4)?.split_at(at * 4);
        let start = large_sum(before);
        self.data.get(start..start.saturating_add(large_sum(own)))
    }

    /// Where the parameters before this one end. Events have few parameters, and of most of them the
    /// first ones are asked for.
    #[inline]
    fn end(&self, at: usize) -> usize {
        let before = &self.lens[..at * width(self.is_large)];
        if self.is_large {
            large_sum(before)
        } else {
            small_sum(before)
        }
    }

    /// Bytes of all, with their lengths.
    pub(crate) fn size(&self) -> usize {
        self.lens.len().saturating_add(self.end(self.len()))
    }

    /// Copies them behind each other. Returns how many of the bytes are lengths.
    pub(crate) fn keep(&self, kept: &mut Vec<u8>) -> usize {
        let end = self.end(self.len());
        kept.clear();
        kept.extend_from_slice(self.lens);
        kept.extend_from_slice(&self.data[..end.min(self.data.len())]);
        self.lens.len()
    }

    /// What was kept of the parameters of a small event.
    pub(crate) fn kept(kept: &'b [u8], lens: usize, is_large: bool) -> Self {
        let (lens, data) = kept.split_at_checked(lens).unwrap_or_default();
        Self {
            lens,
            data,
            is_large,
        }
    }
}

#[inline]
fn small_sum(lens: &[u8]) -> usize {
    let (lens, _) = lens.as_chunks::<2>();
    lens.iter()
        .map(|len| usize::from(u16::from_le_bytes(*len)))
        .sum()
}

fn large_sum(lens: &[u8]) -> usize {
    let (lens, _) = lens.as_chunks::<4>();
    let lens = lens
        .iter()
        .map(|len| usize::try_from(u32::from_le_bytes(*len)));
    lens.fold(0_usize, |sum, len| {
        sum.saturating_add(len.unwrap_or(usize::MAX))
    })
}
