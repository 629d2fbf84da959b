//! Reader of bbolt files, in which containerd and podman keep names and labels.
//!
//! Format: pages of one size, the first two of which are meta pages; of the valid ones, that of the later
//! transaction counts. A bucket is a B+ tree of pages; a value that is a bucket contains the number of its
//! root page, or, if that is 0, its only page. Writers never change a page that a committed transaction uses,
//! so a read is consistent if no other transaction was committed meanwhile. Numbers are in the byte order of
//! the machine that wrote them; only little-endian files are read.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;

use process_info::regular;

const MAGIC: u32 = 0xed0c_daed;
const VERSION: u32 = 2;
const BRANCH: u16 = 1;
const LEAF: u16 = 2;
/// Flag of a leaf element: the value is a bucket.
const IS_BUCKET: u32 = 1;
/// Size of a page header, and of an element of either kind.
const HEADER: usize = 16;
const ELEMENT: usize = 16;
/// Maximum depth of a tree. Trees are a few levels high; a deeper one is damaged.
const DEPTH_LIMIT: usize = 16;
/// Maximum size of a page with its overflow pages.
const PAGE_LIMIT: usize = 4 * 1024 * 1024;
/// Maximum number of listed entries of a bucket, and of pages that are read for the list.
const ENTRY_LIMIT: usize = 1024;
const LISTED_PAGES: usize = 2048;
/// Maximum number of attempts of a read that a commit interferes with.
const TRIES: usize = 8;

/// An open database.
#[derive(Debug)]
pub(super) struct Database {
    file: File,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Meta {
    page_size: usize,
    root: u64,
    transaction: u64,
}

/// A bucket of a database.
#[derive(Clone, Debug)]
pub(super) struct Bucket<'d> {
    database: &'d Database,
    page_size: usize,
    root: Root,
}

#[derive(Clone, Debug)]
enum Root {
    Page(u64),
    Inline(Vec<u8>),
}

/// Callback that receives a key, its value and whether the value is a bucket; returns true to continue.
type Visitor<'s> = dyn FnMut(&[u8], &[u8], bool) -> bool + 's;

/// Result of the look-up of a key in a bucket.
enum KeyLookup {
    Value(Vec<u8>),
    Bucket(Vec<u8>),
}

impl Database {
    /// Opens a database; `None` if the file is missing or may not be read.
    pub(super) fn open(path: &Path) -> Option<Self> {
        let file = regular::open(path).ok()??;
        Some(Self { file })
    }

    /// Reads from the root bucket. `None` if `look` finds nothing, the file is no bbolt database, or commits
    /// keep interfering.
    pub(super) fn read<T>(&self, look: impl Fn(&Bucket<'_>) -> Option<T>) -> Option<T> {
        for _ in 0..TRIES {
            let meta = self.meta()?;
            let root = Bucket {
                database: self,
                page_size: meta.page_size,
                root: Root::Page(meta.root),
            };
            let found = look(&root);
            if self.meta()? == meta {
                return found;
            }
        }
        None
    }

    fn meta(&self) -> Option<Meta> {
        let first = self.meta_at(0);
        // The first page has the position of the second, unless the first is damaged.
        let sizes = first.map_or(4096, |meta| meta.page_size);
        let second = self.meta_at(sizes);
        [first, second]
            .into_iter()
            .flatten()
            .max_by_key(|meta| meta.transaction)
    }

    fn meta_at(&self, offset: usize) -> Option<Meta> {
        const CHECKED: usize = 56;
        let page = self.bytes(offset as u64, HEADER + CHECKED + 8)?;
        let meta = &page[HEADER..];
        let is_meta = number32(meta, 0)? == MAGIC && number32(meta, 4)? == VERSION;
        if !is_meta || number64(meta, CHECKED)? != fnv1a(&meta[..CHECKED]) {
            return None;
        }
        let page_size = usize::try_from(number32(meta, 8)?).ok()?;
        (512..=64 * 1024).contains(&page_size).then_some(Meta {
            page_size,
            root: number64(meta, 16)?,
            transaction: number64(meta, 48)?,
        })
    }

    fn page(&self, number: u64, page_size: usize) -> Option<Vec<u8>> {
        let offset = number.checked_mul(page_size as u64)?;
        let header = self.bytes(offset, HEADER)?;
        let more = usize::try_from(number32(&header, 12)?).ok()?;
        let size = more.checked_add(1)?.checked_mul(page_size)?;
        (size <= PAGE_LIMIT)
            .then(|| self.bytes(offset, size))
            .flatten()
    }

    fn bytes(&self, offset: u64, size: usize) -> Option<Vec<u8>> {
        let mut bytes = vec![0; size];
        self.file.read_exact_at(&mut bytes, offset).ok()?;
        Some(bytes)
    }
}

impl<'d> Bucket<'d> {
    /// The nested bucket under a path of keys.
    pub(super) fn bucket(&self, path: &[&[u8]]) -> Option<Bucket<'d>> {
        let mut bucket = self.clone();
        for key in path {
            bucket = match bucket.find(key)? {
                KeyLookup::Bucket(value) => self.nested(&value)?,
                KeyLookup::Value(_) => return None,
            };
        }
        Some(bucket)
    }

    /// The value of a key.
    pub(super) fn value(&self, key: &[u8]) -> Option<Vec<u8>> {
        match self.find(key)? {
            KeyLookup::Value(value) => Some(value),
            KeyLookup::Bucket(_) => None,
        }
    }

    /// The value of a key, as text.
    pub(super) fn text(&self, key: &[u8]) -> Option<String> {
        String::from_utf8(self.value(key)?).ok()
    }

    /// Keys and values, without nested buckets.
    pub(super) fn texts(&self) -> Vec<(String, String)> {
        let mut all = Vec::new();
        self.each(
            self.first_page(),
            &mut { LISTED_PAGES },
            &mut |key, value, is_bucket| {
                let texts = std::str::from_utf8(key)
                    .ok()
                    .zip(std::str::from_utf8(value).ok());
                if let Some((key, value)) = texts.filter(|_| !is_bucket) {
                    all.push((key.to_owned(), value.to_owned()));
                }
                all.len() < ENTRY_LIMIT
            },
        );
        all
    }

    fn nested(&self, value: &[u8]) -> Option<Bucket<'d>> {
        let root = match number64(value, 0)? {
            0 => Root::Inline(value.get(16..)?.to_vec()),
            page => Root::Page(page),
        };
        Some(Bucket {
            root,
            ..self.clone()
        })
    }

    fn first_page(&self) -> Option<Vec<u8>> {
        match &self.root {
            Root::Page(number) => self.database.page(*number, self.page_size),
            Root::Inline(page) => Some(page.clone()),
        }
    }

    fn find(&self, key: &[u8]) -> Option<KeyLookup> {
        let mut page = self.first_page()?;
        for _ in 0..DEPTH_LIMIT {
            let view = PageView::of(&page)?;
            if view.is_leaf {
                let (_, value, is_bucket) = (0..view.count)
                    .filter_map(|at| view.leaf(at))
                    .find(|(found, _, _)| *found == key)?;
                let value = value.to_vec();
                return Some(if is_bucket {
                    KeyLookup::Bucket(value)
                } else {
                    KeyLookup::Value(value)
                });
            }
            // The last child whose first key is not greater than the key.
            let (_, child) = (0..view.count)
                .map_while(|at| view.branch(at))
                .take_while(|(first, _)| *first <= key)
                .last()?;
            page = self.database.page(child, self.page_size)?;
        }
        None
    }

    /// Visits every element in order until `show` returns false; returns false in that case.
    fn each(&self, page: Option<Vec<u8>>, pages_left: &mut usize, show: &mut Visitor<'_>) -> bool {
        let Some(view) = page.as_deref().and_then(PageView::of) else {
            return true;
        };
        (0..view.count).all(|at| {
            if view.is_leaf {
                return view
                    .leaf(at)
                    .is_none_or(|(key, value, is_bucket)| show(key, value, is_bucket));
            }
            let Some((_, child)) = view.branch(at) else {
                return true;
            };
            // A damaged file may contain cycles.
            *pages_left = pages_left.saturating_sub(1);
            *pages_left > 0 && {
                let page = self.database.page(child, self.page_size);
                self.each(page, pages_left, show)
            }
        })
    }
}

/// A page of a tree.
struct PageView<'p> {
    bytes: &'p [u8],
    is_leaf: bool,
    count: usize,
}

impl<'p> PageView<'p> {
    fn of(bytes: &'p [u8]) -> Option<Self> {
        let flags = number16(bytes, 8)?;
        let count = usize::from(number16(bytes, 10)?);
        (flags & (LEAF | BRANCH) != 0).then_some(Self {
            bytes,
            is_leaf: flags & LEAF != 0,
            count,
        })
    }

    fn leaf(&self, at: usize) -> Option<(&'p [u8], &'p [u8], bool)> {
        let element = HEADER + at * ELEMENT;
        let flags = number32(self.bytes, element)?;
        let key = self.part(
            element,
            self.number(element + 4)?,
            self.number(element + 8)?,
        )?;
        let value_at = self.number(element + 4)?.checked_add(key.len())?;
        let value = self.part(element, value_at, self.number(element + 12)?)?;
        Some((key, value, flags & IS_BUCKET != 0))
    }

    fn branch(&self, at: usize) -> Option<(&'p [u8], u64)> {
        let element = HEADER + at * ELEMENT;
        let key = self.part(element, self.number(element)?, self.number(element + 4)?)?;
        Some((key, number64(self.bytes, element + 8)?))
    }

    /// A part of an element. Positions are relative to the element.
    fn part(&self, element: usize, at: usize, size: usize) -> Option<&'p [u8]> {
        let start = element.checked_add(at)?;
        self.bytes.get(start..start.checked_add(size)?)
    }

    fn number(&self, at: usize) -> Option<usize> {
        usize::try_from(number32(self.bytes, at)?).ok()
    }
}

fn number16(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_le_bytes(*bytes.get(at..)?.first_chunk()?))
}

fn number32(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(*bytes.get(at..)?.first_chunk()?))
}

fn number64(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_le_bytes(*bytes.get(at..)?.first_chunk()?))
}

/// 64-bit FNV-1a, the checksum of meta pages.
fn fnv1a(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// A bucket with its content, to be written.
    pub(crate) enum Item {
        Text(&'static str, String),
        Bucket(&'static str, Vec<Item>),
    }

    /// Writes a database with one page for each large bucket and small ones inline.
    pub(crate) fn write(path: &Path, items: &[Item]) {
        let mut pages = Vec::new();
        let root = place(items, &mut pages);
        let mut file = vec![0; 2 * SIZE];
        for (number, transaction) in [(0_u64, 6_u64), (1, 7)] {
            let mut meta = Vec::new();
            for word in [MAGIC, VERSION, u32::try_from(SIZE).unwrap(), 0] {
                meta.extend(word.to_le_bytes());
            }
            // The older meta page has an invalid root.
            let root = if number == 0 { 999 } else { root };
            for word in [root, 0, 0, 0, transaction] {
                meta.extend(u64::to_le_bytes(word));
            }
            meta.extend(fnv1a(&meta).to_le_bytes());
            let at = usize::try_from(number).unwrap() * SIZE + HEADER;
            file[at..at + meta.len()].copy_from_slice(&meta);
        }
        file.extend(pages.concat());
        std::fs::write(path, file).unwrap();
    }

    const SIZE: usize = 1024;

    fn place(items: &[Item], pages: &mut Vec<Vec<u8>>) -> u64 {
        let mut leaves = Vec::new();
        // Three elements per leaf, so that branch pages exist.
        for items in items.chunks(3) {
            leaves.push((first_key(items), add(leaf(items, pages), pages)));
        }
        match leaves[..] {
            [(_, only)] => only,
            _ => add(branch(&leaves), pages),
        }
    }

    fn first_key(items: &[Item]) -> &'static str {
        match &items[0] {
            Item::Text(key, _) | Item::Bucket(key, _) => key,
        }
    }

    fn add(mut page: Vec<u8>, pages: &mut Vec<Vec<u8>>) -> u64 {
        let used: usize = pages.iter().map(|page| page.len() / SIZE).sum();
        let number = 2 + used as u64;
        let overflow = page.len().div_ceil(SIZE) - 1;
        page[12..16].copy_from_slice(&u32::try_from(overflow).unwrap().to_le_bytes());
        page.resize((overflow + 1) * SIZE, 0);
        pages.push(page);
        number
    }

    fn leaf(items: &[Item], pages: &mut Vec<Vec<u8>>) -> Vec<u8> {
        let elements = items.iter().map(|item| match item {
            Item::Text(key, value) => (0, *key, value.clone().into_bytes()),
            Item::Bucket(key, items) if items.iter().all(|item| matches!(item, Item::Text(..))) => {
                let page = leaf(items, pages);
                (IS_BUCKET, *key, [vec![0; 16], page].concat())
            }
            Item::Bucket(key, items) => {
                let root = place(items, pages).to_le_bytes();
                (IS_BUCKET, *key, [root, [0; 8]].concat())
            }
        });
        let elements: Vec<_> = elements.collect();
        let mut head = vec![0; 8];
        head.extend(LEAF.to_le_bytes());
        head.extend(u16::try_from(elements.len()).unwrap().to_le_bytes());
        head.extend([0; 4]);
        let mut data = Vec::new();
        for (at, (flags, key, value)) in elements.iter().enumerate() {
            let from_element = (elements.len() - at) * ELEMENT + data.len();
            for word in [
                *flags,
                u32::try_from(from_element).unwrap(),
                u32::try_from(key.len()).unwrap(),
                u32::try_from(value.len()).unwrap(),
            ] {
                head.extend(word.to_le_bytes());
            }
            data.extend(key.as_bytes());
            data.extend(value);
        }
        [head, data].concat()
    }

    fn branch(children: &[(&str, u64)]) -> Vec<u8> {
        let mut head = vec![0; 8];
        head.extend(BRANCH.to_le_bytes());
        head.extend(u16::try_from(children.len()).unwrap().to_le_bytes());
        head.extend([0; 4]);
        let mut data = Vec::new();
        for (at, (key, page)) in children.iter().enumerate() {
            let from_element = (children.len() - at) * ELEMENT + data.len();
            head.extend(u32::try_from(from_element).unwrap().to_le_bytes());
            head.extend(u32::try_from(key.len()).unwrap().to_le_bytes());
            head.extend(page.to_le_bytes());
            data.extend(key.as_bytes());
        }
        [head, data].concat()
    }

    fn sample() -> Vec<Item> {
        let text = |key, value: &str| Item::Text(key, value.to_owned());
        vec![
            text("a", "1"),
            Item::Bucket("b", vec![text("inner", "x"), text("other", "y")]),
            text("c", "3"),
            text("d", &"long ".repeat(1000)),
            Item::Bucket(
                "e",
                vec![Item::Bucket("deep", vec![text("k", "v")]), text("f", "g")],
            ),
            text("g", "7"),
            text("h", "8"),
        ]
    }

    fn database(name: &str) -> (std::path::PathBuf, Database) {
        let path = std::env::temp_dir().join(format!("bolt-{name}-{}", std::process::id()));
        write(&path, &sample());
        let database = Database::open(&path).unwrap();
        (path, database)
    }

    #[test]
    fn keys_are_found_in_pages_branches_and_inline_buckets() {
        let (path, database) = database("find");
        let value = |path: &[&[u8]], key: &[u8]| database.read(|root| root.bucket(path)?.text(key));
        assert_eq!(value(&[], b"a").as_deref(), Some("1"));
        assert_eq!(value(&[], b"h").as_deref(), Some("8"));
        assert_eq!(value(&[], b"d").map(|text| text.len()), Some(5000));
        assert_eq!(value(&[b"b"], b"other").as_deref(), Some("y"));
        assert_eq!(value(&[b"e", b"deep"], b"k").as_deref(), Some("v"));
        for (path, key) in [
            (&[][..], &b"0"[..]),
            (&[], b"bb"),
            (&[], b"z"),
            (&[], b"b"),
            (&[&b"a"[..]], b"a"),
            (&[&b"b"[..]], b"zzz"),
        ] {
            assert_eq!(value(path, key), None, "{path:?} {key:?}");
        }
        let texts = database.read(|root| Some(root.bucket(&[b"b"])?.texts()));
        let pair = |key: &str, value: &str| (key.to_owned(), value.to_owned());
        assert_eq!(texts, Some(vec![pair("inner", "x"), pair("other", "y")]));
        std::fs::remove_file(path).unwrap();
    }

    #[test]
    fn damage_is_no_panic_and_no_endless_search() {
        let (path, _) = database("damage");
        let whole = std::fs::read(&path).unwrap();
        let mut seed = 7_u64;
        for round in 0..2_000 {
            let mut bytes = whole.clone();
            for _ in 0..4 {
                seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                // Corrupts bytes behind the meta pages, whose checksum would detect it.
                let at = 2 * SIZE + usize::try_from(seed >> 33).unwrap() % (bytes.len() - 2 * SIZE);
                bytes[at] = seed.to_le_bytes()[2];
            }
            if round % 5 == 0 {
                bytes.truncate(usize::try_from(seed >> 40).unwrap() % bytes.len());
            }
            std::fs::write(&path, &bytes).unwrap();
            let database = Database::open(&path).unwrap();
            database.read(|root| {
                root.texts();
                root.bucket(&[b"e", b"deep"])?.text(b"k")
            });
        }
        std::fs::remove_file(path).unwrap();
    }

    #[test]
    fn what_is_no_database_is_none() {
        assert!(Database::open(Path::new("/no/such/file")).is_none());
        let database = Database::open(Path::new("/proc/self/exe")).unwrap();
        assert_eq!(database.read(|_| Some(())), None);
    }
}
