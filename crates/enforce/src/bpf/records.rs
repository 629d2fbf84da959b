//! Reader of the violations that the programs send.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::net::Ipv6Addr;
use std::rc::Rc;
use std::time::Duration;

use abi::Errno;
use libbpf_rs::{MapHandle, RingBuffer, RingBufferBuilder};

use policy::EnforcerKind;

use super::Error;
use super::kind::Operation;
use super::programs::{self, KernelPrograms};
use super::tables::RULE;
use crate::Denial;

/// `sizeof(struct violation)`.
const HEAD: usize = 328;
const EXE: usize = 88;
/// Offset of the number of the table, after the path of the program.
const TABLE: usize = 324;
const DENY: u16 = 0x1000;
const EPERM: Errno = Errno(1);

/// The stream of violations of a policy.
#[derive(Debug)]
pub(crate) struct Reports {
    number: u32,
    ring: RingBuffer<'static>,
    taken: Rc<RefCell<Vec<Vec<u8>>>>,
    reader: Reader,
    ledgers: MapHandle,
}

impl Reports {
    /// Opens the stream of the policy with this number.
    ///
    /// # Errors
    /// Fails if the policy is not loaded, or reports nothing.
    pub(crate) fn open(number: u32) -> Result<Self, Error> {
        let (ring, rules, ledgers) = KernelPrograms::open()?.reports(number)?;
        let taken = Rc::new(RefCell::new(Vec::new()));
        let into = Rc::clone(&taken);
        let mut builder = RingBufferBuilder::new();
        let added = builder.add(&ring, move |record| {
            into.borrow_mut().push(record.to_vec());
            0
        });
        added.map_err(Error::map("rings"))?;
        let ring = builder.build().map_err(Error::map("rings"))?;
        Ok(Self {
            number,
            ring,
            taken,
            reader: Reader::new(rules),
            ledgers,
        })
    }

    /// Waits up to `limit` for violations, and returns those that arrived.
    ///
    /// # Errors
    /// Fails if the ring buffer cannot be read.
    pub(crate) fn wait(&mut self, limit: Duration) -> Result<Vec<Denial>, Error> {
        self.ring.poll(limit).map_err(Error::map("rings"))?;
        let taken = std::mem::take(&mut *self.taken.borrow_mut());
        let read = taken.iter().filter_map(|record| self.reader.read(record));
        Ok(read.map(|read| read.denial).collect())
    }

    /// Number of reports lost for lack of room, since the policy was loaded.
    ///
    /// # Errors
    /// Fails if the counter cannot be read.
    pub(crate) fn lost(&self) -> Result<u64, Error> {
        let counts = programs::ledger(&self.ledgers, self.number)?;
        Ok(counts.map_or(0, |[_, _, _, lost, ..]| lost))
    }
}

/// Reads records, and knows the names of the rules in them.
#[derive(Debug)]
pub(super) struct Reader {
    rules: MapHandle,
    /// By table, version and number.
    names: BTreeMap<(u32, u32, u16), String>,
}

/// A record.
pub(super) struct Record {
    /// Number of who is confined.
    pub(super) number: u32,
    /// Time since the boot.
    pub(super) time_ns: u64,
    pub(super) denial: Denial,
}

/// Names that a reader keeps. Policies change, and what is read again is forgotten without harm.
const NAMES: usize = 4096;

impl Reader {
    pub(super) fn new(rules: MapHandle) -> Self {
        Self {
            rules,
            names: BTreeMap::new(),
        }
    }

    /// Parses a record; `None` if it is too short.
    pub(super) fn read(&mut self, record: &[u8]) -> Option<Record> {
        let head = Head::read(record)?;
        let name = self.name(head.table, head.generation, head.outcome & RULE);
        Some(Record {
            number: head.policy,
            time_ns: head.time,
            denial: head.denial(record, name),
        })
    }

    fn name(&mut self, table: u32, generation: u32, number: u16) -> String {
        let key = (table, generation, number);
        if let Some(name) = self.names.get(&key) {
            return name.clone();
        }
        let found = programs::rule_name(&self.rules, table, generation, u32::from(number));
        // Number 0 means an undetermined rule; a rule whose name is gone is reported by its number.
        let name = match found {
            Ok(Some(name)) => name,
            // Not kept: the next look-up may find it.
            _ if number == 0 => return "unknown-path".to_owned(),
            _ => return format!("rule {number}"),
        };
        if self.names.len() >= NAMES {
            self.names.clear();
        }
        self.names.insert(key, name.clone());
        name
    }
}

/// `struct violation`.
struct Head {
    time: u64,
    pid: u32,
    uid: u32,
    generation: u32,
    policy: u32,
    table: u32,
    outcome: u16,
    what: u16,
    detail: [u64; 4],
    path_len: usize,
    exe_len: usize,
}

impl Head {
    fn read(record: &[u8]) -> Option<Self> {
        let long = |at: usize| Some(u64::from_ne_bytes(record.get(at..at + 8)?.try_into().ok()?));
        let word = |at: usize| Some(u32::from_ne_bytes(record.get(at..at + 4)?.try_into().ok()?));
        let short = |at: usize| Some(u16::from_ne_bytes(record.get(at..at + 2)?.try_into().ok()?));
        (record.len() >= HEAD).then_some(())?;
        Some(Self {
            time: long(0)?,
            pid: word(8)?,
            uid: word(16)?,
            generation: word(20)?,
            policy: word(24)?,
            table: word(TABLE)?,
            outcome: short(28)?,
            what: short(30)?,
            detail: [long(32)?, long(40)?, long(48)?, long(56)?],
            path_len: usize::try_from(word(80)?).ok()?,
            exe_len: usize::try_from(word(84)?).ok()?,
        })
    }

    fn denial(&self, record: &[u8], rule: String) -> Denial {
        let text = |bytes: &[u8]| {
            let end = bytes
                .iter()
                .position(|byte| *byte == 0)
                .unwrap_or(bytes.len());
            String::from_utf8_lossy(&bytes[..end]).into_owned()
        };
        let path = record.get(HEAD..HEAD + self.path_len).unwrap_or_default();
        let exe = &record[EXE..TABLE];
        let (operation, detail) = describe(self.what, &self.detail);
        let exe = text(&exe[..self.exe_len.min(exe.len())]);
        Denial {
            enforcer: EnforcerKind::Bpf,
            pid: self.pid,
            uid: Some(self.uid),
            rule,
            errno: (self.outcome & DENY != 0).then_some(EPERM),
            operation: operation.to_owned(),
            detail,
            path: (!path.is_empty()).then(|| text(path)),
            comm: text(&record[64..80]),
            exe: (!exe.is_empty()).then_some(exe),
        }
    }
}

const CHANGES: [&str; 8] = [
    "truncate", "remove", "create", "rename", "link", "chmod", "chown", "setxattr",
];

/// Formats `enum what` and its details.
fn describe(what: u16, detail: &[u64; 4]) -> (&'static str, String) {
    let [first, second, third, _] = *detail;
    let hex = |name: &str| format!("{name}={first:#x}");
    match what {
        0 => ("open", hex("flags")),
        1 => {
            let change = usize::try_from(first).ok().and_then(|at| CHANGES.get(at));
            (change.copied().unwrap_or("change"), String::new())
        }
        2 => ("exec", String::new()),
        3 => ("connect", String::new()),
        4 => (
            "socket",
            format!("domain={first} type={second} protocol={third}"),
        ),
        5 => (
            "connect",
            format!("address={} port={third}", address(first, second)),
        ),
        6 => ("mount", hex("flags")),
        7 => ("umount", hex("flags")),
        8 => ("ptrace", format!("pid={first} mode={second:#x}")),
        9 => {
            let number = u8::try_from(first).ok();
            let name = number.and_then(abi::capability::name);
            let name = name.map_or_else(|| first.to_string(), str::to_owned);
            ("capability", format!("capability={name}"))
        }
        10 => ("mode", format!("mode={first:o}")),
        11 => {
            let name = Operation::from_number(first);
            (
                "operation",
                name.map_or_else(|| first.to_string(), |name| name.to_string()),
            )
        }
        12 => ("disk", format!("flags={first:#x} device={second:#x}")),
        _ => ("path", "the path is too long or too deep".to_owned()),
    }
}

/// Formats an address from two words in kernel memory order; an IPv4 address in IPv4 notation.
fn address(first: u64, second: u64) -> String {
    let mut bytes = [0; 16];
    bytes[..8].copy_from_slice(&first.to_ne_bytes());
    bytes[8..].copy_from_slice(&second.to_ne_bytes());
    let address = Ipv6Addr::from(bytes);
    match address.to_ipv4_mapped() {
        Some(address) => address.to_string(),
        None => address.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_is_read_as_it_was_written() {
        let mut record = vec![0; HEAD];
        record[..8].copy_from_slice(&7_u64.to_ne_bytes());
        record[8..12].copy_from_slice(&42_u32.to_ne_bytes());
        record[16..20].copy_from_slice(&1000_u32.to_ne_bytes());
        record[24..28].copy_from_slice(&9_u32.to_ne_bytes());
        record[324..328].copy_from_slice(&8_u32.to_ne_bytes());
        record[28..30].copy_from_slice(&(DENY | 1).to_ne_bytes());
        record[64..67].copy_from_slice(b"cat");
        record[80..84].copy_from_slice(&11_u32.to_ne_bytes());
        record[84..88].copy_from_slice(&8_u32.to_ne_bytes());
        record[88..96].copy_from_slice(b"/bin/cat");
        record.extend(b"/etc/shadow");
        let head = Head::read(&record).unwrap();
        assert_eq!((head.time, head.policy, head.table), (7, 9, 8));
        let denial = head.denial(&record, "r".to_owned());
        assert_eq!(denial.path.as_deref(), Some("/etc/shadow"));
        assert_eq!(
            (denial.exe.as_deref(), denial.comm.as_str()),
            (Some("/bin/cat"), "cat")
        );
        assert_eq!(
            (denial.pid, denial.uid, denial.errno),
            (42, Some(1000), Some(EPERM))
        );
        assert_eq!(denial.operation, "open");
        assert!(Head::read(&record[..100]).is_none());
    }

    #[test]
    fn addresses_and_capabilities_are_reported_by_name() {
        let mut bytes = [0; 16];
        bytes[10..].copy_from_slice(&[0xff, 0xff, 169, 254, 169, 254]);
        let words = [
            u64::from_ne_bytes(bytes[..8].try_into().unwrap()),
            u64::from_ne_bytes(bytes[8..].try_into().unwrap()),
        ];
        let (_, text) = describe(5, &[words[0], words[1], 80, 0]);
        assert_eq!(text, "address=169.254.169.254 port=80");
        assert_eq!(describe(9, &[21, 0, 0, 0]).1, "capability=CAP_SYS_ADMIN");
    }
}
