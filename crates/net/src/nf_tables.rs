//! Numbers of netlink, nfnetlink and nf_tables (`linux/netlink.h`, `linux/netfilter/nf_tables.h`).

pub const HEADER_BYTES: usize = 16;
pub const REQUEST: u16 = 0x1;
pub const FLAGS_AT: usize = 6;
pub const ACK: u16 = 0x4;
pub const CREATE: u16 = 0x400;
pub const APPEND: u16 = 0x800;
pub const TYPE_ERROR: u16 = 2;
pub const BATCH_BEGIN: u16 = 0x10;
pub const BATCH_END: u16 = 0x11;
pub const SUBSYSTEM: u16 = 10;
pub const NEW_CHAIN: u16 = 3;
pub const DEL_CHAIN: u16 = 5;
pub const NEW_RULE: u16 = 6;
pub const DEL_RULE: u16 = 8;
pub const NEW_ELEMENTS: u16 = 12;
pub const DEL_ELEMENTS: u16 = 14;
pub const NESTED: u16 = 0x8000;
/// Entries of every list, and the value of every piece of data.
pub const LIST_ENTRY: u16 = 1;
pub const DATA_VALUE: u16 = 1;
pub const DATA_VERDICT: u16 = 2;
/// The table's name, in every kind of message.
pub const TABLE: u16 = 1;
pub const CHAIN_NAME: u16 = 3;
pub const RULE_CHAIN: u16 = 2;
pub const RULE_EXPRESSIONS: u16 = 4;
pub const ELEMENTS_SET: u16 = 2;
pub const ELEMENTS_LIST: u16 = 3;
pub const ELEMENT_KEY: u16 = 1;
pub const ELEMENT_DATA: u16 = 2;
pub const EXPRESSION_NAME: u16 = 1;
pub const EXPRESSION_DATA: u16 = 2;
pub const VERDICT_CODE: u16 = 1;
pub const VERDICT_CHAIN: u16 = 2;
pub const DROP: i32 = 0;
pub const ACCEPT: i32 = 1;
pub const JUMP: i32 = -3;
pub const GOTO: i32 = -4;
pub const RETURN: i32 = -5;
/// Registers of expressions: that of the verdict, and two for data.
pub const VERDICT_REGISTER: u32 = 0;
pub const REGISTER_1: u32 = 1;
pub const REGISTER_2: u32 = 2;
pub const META_L4PROTO: u32 = 16;
pub const CMP_EQUAL: u32 = 0;
pub const RANDOM: u32 = 1;
pub const DNAT: u32 = 1;
