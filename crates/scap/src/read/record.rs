//! Events in their encoded form.

use super::blocks::Block;
use crate::Error;
use crate::bytes::Bytes;
use crate::table::EventType;

/// Upper bound on the parameters of an event type.
pub const MAX_PARAMS: usize = 48;

/// Flag: the event only carries state and is not shown (`SCAP_DF_STATE_ONLY`).
pub const STATE_ONLY: u32 = 1;

/// One event of a capture.
#[derive(Clone, Copy, Debug)]
pub struct Record<'b> {
    /// Offset of the block in the uncompressed capture.
    pub offset: u64,
    /// Time in nanoseconds since the epoch.
    pub time_ns: u64,
    /// Thread id.
    pub tid: i64,
    /// Processor number.
    pub cpu: u16,
    /// Flags of the block.
    pub flags: u32,
    /// Number of the event type.
    pub code: u16,
    count: u32,
    is_old: bool,
    /// Lengths of the parameters, followed by the parameters.
    body: &'b [u8],
}

/// The parameters of an event, with validated lengths.
#[derive(Clone, Copy, Debug)]
pub struct Params<'b> {
    /// Start of each parameter, and the end of the last one.
    starts: &'b [u32],
    data: &'b [u8],
}

/// Buffer for parameter offsets. Parameters are read several times, and summing up lengths costs
/// more than all other work for most of them.
#[derive(Clone, Debug)]
pub struct Starts([u32; MAX_PARAMS + 1]);

impl Default for Starts {
    fn default() -> Self {
        Self([0; MAX_PARAMS + 1])
    }
}

/// Layout of an event's header.
#[derive(Clone, Copy, Debug)]
pub(crate) struct HeaderKind {
    pub(crate) has_flags: bool,
    pub(crate) is_old: bool,
}

/// Offset of the event type in a block's body, after processor, time, thread and length.
pub(crate) const CODE: usize = 2 + 8 + 8 + 4;
/// Like [`CODE`], for blocks that begin with flags.
pub(crate) const FLAGGED_CODE: usize = CODE + 4;

impl<'b> Record<'b> {
    #[inline(always)]
    pub(crate) fn parse(block: &Block<'b>, shape: HeaderKind) -> Result<Self, Error> {
        match Self::split(block, shape) {
            Some(record) => Ok(record),
            None => Err(Self::misfit(block, shape)),
        }
    }

    #[inline(always)]
    fn split(block: &Block<'b>, shape: HeaderKind) -> Option<Self> {
        let mut bytes = Bytes::new(block.body);
        let cpu = bytes.u16()?;
        let flags = if shape.has_flags { bytes.u32()? } else { 0 };
        let available = bytes.len();
        let (time_ns, tid, len, code) = (bytes.u64()?, bytes.i64()?, bytes.u32()?, bytes.u16()?);
        let count = if shape.is_old { 0 } else { bytes.u32()? };
        let header = available - bytes.len();
        let body = bytes.take((len as usize).checked_sub(header)?)?;
        Some(Self {
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

    /// Describes why a block is not a valid event.
    #[cold]
    fn misfit(block: &Block<'_>, shape: HeaderKind) -> Error {
        let before = if shape.has_flags { FLAGGED_CODE } else { CODE };
        let header = before + if shape.is_old { 2 } else { 6 };
        let len = before
            .checked_sub(4)
            .and_then(|at| Bytes::new(block.body.get(at..)?).u32());
        match len {
            Some(len) if block.body.len() >= header => {
                let available = block.body.len() - (before - 20);
                block.corrupt(format!(
                    "an event of {len} bytes in a block with room for {available}"
                ))
            }
            _ => block.corrupt("an event that is shorter than its header"),
        }
    }

    /// Returns the event type; `None` if it is newer than this program.
    #[must_use]
    pub fn ty(&self) -> Option<&'static EventType> {
        EventType::of(self.code)
    }

    /// Returns true if the event only carries state.
    #[must_use]
    pub fn is_state_only(&self) -> bool {
        self.flags & STATE_ONLY != 0
    }

    /// Locates the parameters of an event of a known type.
    ///
    /// # Errors
    ///
    /// Their lengths do not match the event.
    pub fn params<'s>(&self, starts: &'s mut Starts) -> Result<Params<'s>, Error>
    where
        'b: 's,
    {
        match self.ty() {
            Some(ty) => self.params_of(ty, starts),
            None => Ok(Params::NONE),
        }
    }

    /// Like [`Record::params`], for a type that the caller knows.
    #[inline(always)]
    pub(crate) fn params_of<'s>(
        &self,
        ty: &EventType,
        starts: &'s mut Starts,
    ) -> Result<Params<'s>, Error>
    where
        'b: 's,
    {
        if self.is_old {
            return self.old_params(ty, starts);
        }
        let count = usize::try_from(self.count).unwrap_or(usize::MAX);
        // Additional parameters belong to a newer version.
        let wanted = count.min(ty.params.len()).min(MAX_PARAMS);
        match split(self.body, count, wanted, ty.is_large, starts) {
            Some(params) => Ok(params),
            None => Err(self.corrupt("parameters that are longer than their event")),
        }
    }

    /// Returns the first parameter, if it is a 64-bit number, and the unparsed lengths and bytes of
    /// the others. Lengths have 16 bits. Returns `None` for events of old captures.
    #[inline]
    pub(crate) fn first_and_rest(&self) -> Option<(i64, &'b [u8], &'b [u8])> {
        if self.is_old {
            return None;
        }
        let lens = usize::try_from(self.count)
            .ok()?
            .checked_mul(width(false))?;
        let (lens, data) = self.body.split_at_checked(lens)?;
        let (first, lens) = lens.split_first_chunk::<2>()?;
        let (number, data) = data.split_first_chunk::<8>()?;
        (u16::from_le_bytes(*first) == 8).then_some((i64::from_le_bytes(*number), lens, data))
    }

    /// Locates the parameters in an old capture, which has no parameter count: as many as fill the
    /// event.
    #[cold]
    fn old_params<'s>(&self, ty: &EventType, starts: &'s mut Starts) -> Result<Params<'s>, Error>
    where
        'b: 's,
    {
        // These were written with a length that is too large by three.
        let surplus = if matches!(ty.name, "notification" | "infra") {
            3
        } else {
            0
        };
        let body = &self.body[..self.body.len().saturating_sub(surplus)];
        let mut fills = |count: &usize| {
            let params = split(body, *count, *count, ty.is_large, starts);
            params
                .is_some_and(|params| count * width(ty.is_large) + params.data_len() == body.len())
        };
        let count = (0..=ty.params.len().min(MAX_PARAMS))
            .rev()
            .find(|count| fills(count));
        count
            .and_then(|count| split(body, count, count, ty.is_large, starts))
            .ok_or_else(|| self.corrupt("parameters that do not fill their event"))
    }

    #[cold]
    pub(crate) fn corrupt(&self, problem: &str) -> Error {
        let name = self.ty().map_or("event", |ty| ty.name);
        Error::Corrupt {
            offset: self.offset,
            problem: format!("{problem} ({name})"),
        }
    }
}

/// Locates the first `wanted` of `count` parameters.
#[inline(always)]
fn split<'s>(
    body: &'s [u8],
    count: usize,
    wanted: usize,
    large: bool,
    starts: &'s mut Starts,
) -> Option<Params<'s>> {
    let (lens, data) = body.split_at_checked(count.checked_mul(width(large))?)?;
    let starts = starts.0.get_mut(..=wanted)?;
    let mut end = 0_u32;
    let (first, ends) = starts.split_first_mut()?;
    *first = end;
    if large {
        let (lens, _) = lens.as_chunks::<4>();
        for (place, len) in ends.iter_mut().zip(lens) {
            // A sum beyond the numeric range is also beyond the event.
            end = end.saturating_add(u32::from_le_bytes(*len));
            *place = end;
        }
    } else {
        let (lens, _) = lens.as_chunks::<2>();
        for (place, len) in ends.iter_mut().zip(lens) {
            end += u32::from(u16::from_le_bytes(*len));
            *place = end;
        }
    }
    (end as usize <= data.len()).then_some(Params { starts, data })
}

/// Returns the size of a length field in bytes.
const fn width(is_large: bool) -> usize {
    if is_large { 4 } else { 2 }
}

impl<'b> Params<'b> {
    /// No parameters.
    pub const NONE: Self = Self {
        starts: &[],
        data: &[],
    };

    /// Returns the number of parameters.
    #[must_use]
    pub fn len(&self) -> usize {
        self.starts.len().saturating_sub(1)
    }

    /// Returns true if there are no parameters.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the bytes of a parameter; `None` if the capture does not have it.
    #[must_use]
    #[inline]
    pub fn get(&self, at: usize) -> Option<&'b [u8]> {
        let [start, end] = *self.starts.get(at..)?.first_chunk::<2>()?;
        self.data.get(start as usize..end as usize)
    }

    /// Creates a single parameter.
    #[cfg(test)]
    pub(crate) fn one(data: &'b [u8], starts: &'b mut Starts) -> Self {
        starts.0[1] = u32::try_from(data.len()).unwrap();
        let starts = &starts.0[..2];
        Self { starts, data }
    }

    /// Returns the total size of all parameters in bytes.
    fn data_len(&self) -> usize {
        self.starts.last().map_or(0, |end| *end as usize)
    }
}

/// Parameters that outlive their event. Few and short ones, as most are, need no allocation.
#[derive(Debug, Default)]
pub(crate) struct KeptParams {
    /// Number of used entries of the inline offsets; `None` if the parameters are in `other`.
    few: Option<u8>,
    few_starts: [u32; FEW + 1],
    short_data: [u8; SHORT],
    /// Heap storage, reused for later parameters.
    other: Option<Box<(Vec<u32>, Vec<u8>)>>,
}

/// Number of inline parameters. With their bytes, the thread and the type they fill a cache line.
const FEW: usize = 3;
const SHORT: usize = 16;

impl KeptParams {
    /// Replaces the kept parameters. Returns false if there are too many bytes.
    #[inline]
    pub(crate) fn replace(&mut self, params: &Params<'_>, limit: usize) -> bool {
        let data = params.data.get(..params.data_len()).unwrap_or_default();
        if let (Some(starts), Some(bytes)) = (
            self.few_starts.get_mut(..params.starts.len()),
            self.short_data.get_mut(..data.len()),
        ) {
            starts.copy_from_slice(params.starts);
            bytes.copy_from_slice(data);
            self.few = u8::try_from(params.starts.len()).ok();
            return true;
        }
        self.replace_other(params.starts, data, limit)
    }

    #[inline(never)]
    fn replace_other(&mut self, of: &[u32], bytes: &[u8], limit: usize) -> bool {
        if bytes.len() > limit {
            return false;
        }
        self.few = None;
        let (starts, data) = &mut **self.other.get_or_insert_default();
        starts.clear();
        starts.extend_from_slice(of);
        data.clear();
        data.extend_from_slice(bytes);
        true
    }

    #[inline]
    pub(crate) fn params(&self) -> Params<'_> {
        match (self.few, &self.other) {
            (Some(few), _) => Params {
                starts: self.few_starts.get(..usize::from(few)).unwrap_or_default(),
                data: &self.short_data,
            },
            (None, Some(other)) => Params {
                starts: &other.0,
                data: &other.1,
            },
            (None, None) => Params::NONE,
        }
    }

    /// Returns the size of the heap storage in bytes.
    #[inline]
    pub(crate) fn capacity(&self) -> usize {
        self.other.as_ref().map_or(0, |other| {
            let (starts, data) = &**other;
            size_of::<(Vec<u32>, Vec<u8>)>()
                + starts.capacity() * size_of::<u32>()
                + data.capacity()
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameters_are_found_and_lengths_that_lie_are_not_believed() {
        let mut starts = Starts::default();
        let small = [1, 0, 2, 0, 7, 8, 9];
        let params = split(&small, 2, 2, false, &mut starts).unwrap();
        assert_eq!((params.len(), params.data_len()), (2, 3));
        assert_eq!(
            [0, 1, 2].map(|at| params.get(at)),
            [Some(&[7][..]), Some(&[8, 9]), None]
        );
        let fewer = split(&small, 2, 1, false, &mut starts).unwrap();
        assert_eq!((fewer.get(0), fewer.get(1)), (Some(&[7][..]), None));
        let large = [&1_u32.to_le_bytes()[..], &0_u32.to_le_bytes(), &[5]].concat();
        let params = split(&large, 2, 2, true, &mut starts).unwrap();
        assert_eq!(
            (params.get(0), params.get(1)),
            (Some(&[5][..]), Some(&[][..]))
        );
        let huge = [[0xff; 4]; 3].concat();
        for (body, count, is_large) in [
            (&[9, 0][..], 1, false),
            (&huge, 3, true),
            (&huge, usize::MAX, true),
            (&huge, 7, false),
        ] {
            let wanted = count.min(MAX_PARAMS);
            assert!(split(body, count, wanted, is_large, &mut starts).is_none());
        }
        assert!(Params::NONE.is_empty() && Params::NONE.get(0).is_none());
    }

    #[test]
    fn what_is_kept_is_what_was_there() {
        let mut starts = Starts::default();
        let params = split(&[1, 0, 1, 0, 7, 8, 9], 2, 2, false, &mut starts).unwrap();
        let mut kept = KeptParams::default();
        assert!(kept.params().is_empty());
        assert!(kept.replace(&params, 2));
        assert_eq!(
            (kept.params().get(1), kept.params().len()),
            (Some(&[8][..]), 2)
        );
        let long = [&[30, 0][..], &[7; 30]].concat();
        let long = split(&long, 1, 1, false, &mut starts).unwrap();
        assert!(!kept.replace(&long, 29) && kept.capacity() == 0);
        assert!(kept.replace(&long, 30) && kept.capacity() >= 30);
        assert_eq!(kept.params().get(0), Some(&[7; 30][..]));
        let none = split(&[], 0, 0, false, &mut starts).unwrap();
        assert!(kept.replace(&none, 0) && kept.params().is_empty());
        let many = split(&[0, 0, 0, 0, 1, 0, 9], 3, 3, false, &mut starts).unwrap();
        assert!(kept.replace(&many, 1));
        assert_eq!(kept.params().get(2), Some(&[9][..]));
    }

    #[test]
    fn what_follows_the_first_number_is_found() {
        let record = |count, is_old, body: &'static [u8]| Record {
            offset: 0,
            time_ns: 0,
            tid: 1,
            cpu: 0,
            flags: 0,
            code: 307,
            count,
            is_old,
            body,
        };
        let body = &[8, 0, 1, 0, 5, 0, 0, 0, 0, 0, 0, 0, b'x'];
        let found = record(2, false, body).first_and_rest();
        assert_eq!(found, Some((5, &[1, 0][..], &b"x"[..])));
        assert_eq!(record(2, true, body).first_and_rest(), None);
        assert_eq!(record(2, false, &body[..11]).first_and_rest(), None);
        assert_eq!(record(9, false, body).first_and_rest(), None);
        assert_eq!(record(0, false, body).first_and_rest(), None);
        assert_eq!(record(1, false, &[4, 0, 1, 2, 3, 4]).first_and_rest(), None);
    }
}
