//! Writes the file format of bbolt from front to back: pages of sorted pairs, branch pages above them, and at the end
//! the two meta pages at the front, which refer to the root. All numbers are little-endian.

use std::io::{self, Seek, SeekFrom, Write};

const PAGE_BYTES: usize = 4096;
/// The size of a page head: ID, kind, number of elements, number of overflow pages.
const HEAD_BYTES: usize = 16;
const ELEMENT_BYTES: usize = 16;

const BRANCH: u16 = 0x01;
const LEAF: u16 = 0x02;
const META: u16 = 0x04;
const FREE_LIST: u16 = 0x10;
/// The flag of an element whose value is a bucket.
const BUCKET: u32 = 1;

const MAGIC: u32 = 0xED0C_DAED;
const VERSION: u32 = 2;
/// The first page after two meta pages and the list of free pages.
const FIRST_PAGE: u64 = 3;

pub(super) struct Bolt<W> {
    to: W,
    next: u64,
}

/// A page that is being filled.
struct Page {
    kind: u16,
    /// Flags, key and value in a leaf; page and key in a branch.
    elements: Vec<Element>,
    bytes: usize,
}

struct Element {
    flags: u32,
    page: u64,
    key: Vec<u8>,
    value: Vec<u8>,
}

impl Page {
    fn new(kind: u16) -> Self {
        Self { kind, elements: Vec::new(), bytes: HEAD_BYTES }
    }

    fn has_room(&self, element: &Element) -> bool {
        let more = ELEMENT_BYTES + element.key.len() + element.value.len();
        self.elements.is_empty() || self.bytes + more <= PAGE_BYTES
    }

    fn push(&mut self, element: Element) {
        self.bytes += ELEMENT_BYTES + element.key.len() + element.value.len();
        self.elements.push(element);
    }

    fn encode(&self, id: u64) -> Vec<u8> {
        let pages = self.bytes.div_ceil(PAGE_BYTES).max(1);
        let mut page = head(id, self.kind, self.elements.len(), pages - 1);
        let mut at = HEAD_BYTES + ELEMENT_BYTES * self.elements.len();
        for element in &self.elements {
            // Relative to the element itself.
            let position = (at - page.len()) as u32;
            let (key, value) = (element.key.len(), element.value.len());
            if self.kind == LEAF {
                page.extend([element.flags, position, key as u32, value as u32].into_iter().flat_map(u32::to_le_bytes));
            } else {
                page.extend([position, key as u32].into_iter().flat_map(u32::to_le_bytes));
                page.extend(element.page.to_le_bytes());
            }
            at += key + value;
        }
        for element in &self.elements {
            page.extend_from_slice(&element.key);
            page.extend_from_slice(&element.value);
        }
        page.resize(pages * PAGE_BYTES, 0);
        page
    }
}

fn head(id: u64, kind: u16, count: usize, more_pages: usize) -> Vec<u8> {
    let mut head = Vec::with_capacity(PAGE_BYTES);
    head.extend(id.to_le_bytes());
    head.extend(kind.to_le_bytes());
    // A page of 4096 bytes has room for 255 elements.
    head.extend((count as u16).to_le_bytes());
    head.extend((more_pages as u32).to_le_bytes());
    head
}

impl<W: Write + Seek> Bolt<W> {
    pub fn new(mut to: W) -> io::Result<Self> {
        to.write_all(&vec![0; PAGE_BYTES * FIRST_PAGE as usize])?;
        Ok(Self { to, next: FIRST_PAGE })
    }

    /// Writes pairs in the order of their keys; returns the root page.
    pub fn bucket(&mut self, pairs: impl Iterator<Item = (Vec<u8>, Vec<u8>)>) -> io::Result<u64> {
        self.tree(LEAF, pairs.map(|(key, value)| Element { flags: 0, page: 0, key, value }))
    }

    /// Writes elements, and branch pages if they need more than one page; returns the root page.
    fn tree(&mut self, kind: u16, elements: impl Iterator<Item = Element>) -> io::Result<u64> {
        let mut page = Page::new(kind);
        let mut above = Vec::new();
        for element in elements {
            if !page.has_room(&element) {
                above.push(self.page(std::mem::replace(&mut page, Page::new(kind)))?);
            }
            page.push(element);
        }
        above.push(self.page(page)?);
        if above.len() > 1 {
            self.tree(BRANCH, Box::new(above.into_iter()) as Box<dyn Iterator<Item = Element>>)
        } else {
            Ok(above[0].page)
        }
    }

    /// Writes a page; returns its element for the branch page above.
    fn page(&mut self, page: Page) -> io::Result<Element> {
        let bytes = page.encode(self.next);
        self.to.write_all(&bytes)?;
        let element = Element {
            flags: 0,
            page: self.next,
            key: page.elements.into_iter().next().map(|first| first.key).unwrap_or_default(),
            value: Vec::new(),
        };
        self.next += (bytes.len() / PAGE_BYTES) as u64;
        Ok(element)
    }

    /// Writes the list of buckets in the order of their names, and the meta pages; returns the size of the file in
    /// bytes.
    pub fn end(mut self, buckets: &[(&str, u64)]) -> io::Result<u64> {
        let element = |(name, page): &(&str, u64)| Element {
            flags: BUCKET,
            page: 0,
            key: name.as_bytes().to_vec(),
            // The root page of the bucket, and its last sequence number.
            value: [page.to_le_bytes(), [0; 8]].concat(),
        };
        let root = self.tree(LEAF, buckets.iter().map(element))?;
        self.to.seek(SeekFrom::Start(0))?;
        for id in 0..2 {
            let mut page = head(id, META, 0, 0);
            let numbers = [MAGIC, VERSION, PAGE_BYTES as u32, 0];
            page.extend(numbers.into_iter().flat_map(u32::to_le_bytes));
            // Root page and its sequence number, list of free pages, first page after the end, transaction ID.
            page.extend([root, 0, 2, self.next, id].into_iter().flat_map(u64::to_le_bytes));
            page.extend(fnv1a(&page[HEAD_BYTES..]).to_le_bytes());
            page.resize(PAGE_BYTES, 0);
            self.to.write_all(&page)?;
        }
        let mut free = head(2, FREE_LIST, 0, 0);
        free.resize(PAGE_BYTES, 0);
        self.to.write_all(&free)?;
        self.to.flush()?;
        Ok(self.next * PAGE_BYTES as u64)
    }
}

/// Returns the checksum of a meta page.
fn fnv1a(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xCBF2_9CE4_8422_2325, |sum, byte| (sum ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01B3))
}
