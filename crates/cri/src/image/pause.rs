//! The pause program and its image, generated here, so that nothing is pulled for a pod's sandbox. The program is a
//! static ELF file of a few hundred bytes that sleeps; SIGTERM and SIGINT end it (as PID 1 it must handle them to
//! receive them), and the kernel reaps orphaned children because it ignores SIGCHLD.

use super::build::{ImageConfig, NewImage};
use super::tar::Writer;

/// The load address of the program.
const BASE: u64 = 0x40_0000;
const ELF_HEADER_BYTES: usize = 64;
const PROGRAM_HEADER_BYTES: usize = 56;
/// The offset of the text, after two program headers: the segment, and the entry that makes the stack not executable.
const TEXT_AT: usize = ELF_HEADER_BYTES + 2 * PROGRAM_HEADER_BYTES;
/// The size of the kernel's `sigaction`: handler, flags, restorer, mask.
const SIGACTION_BYTES: usize = 32;
const SA_RESTORER: u64 = 0x0400_0000;
const SIG_IGN: u64 = 1;
const SIGINT: u32 = 2;
const SIGTERM: u32 = 15;
const SIGCHLD: u32 = 17;

/// Returns the name of this version's pause image.
pub fn name() -> String {
    format!("kelson.local/pause:{}", env!("CARGO_PKG_VERSION"))
}

/// Returns the pause image as an OCI archive; `None` for an unsupported architecture.
pub fn archive() -> Option<Vec<u8>> {
    let mut layer = Writer::new();
    layer.file("pause", 0o755, &program(std::env::consts::ARCH)?);
    let config =
        ImageConfig { entrypoint: vec!["/pause".to_owned()], user: "65535:65535".to_owned(), ..Default::default() };
    let image = NewImage { name: name(), layers: vec![layer.finish()], config };
    // The name is a valid constant.
    image.to_archive().ok()
}

/// Returns the pause program for an architecture by Rust's name.
pub fn program(arch: &str) -> Option<Vec<u8>> {
    let (machine, text, entry) = match arch {
        "x86_64" => x86_64(),
        "aarch64" => aarch64(),
        _ => return None,
    };
    Some(elf(machine, &text, entry))
}

/// Returns two `sigaction`s at the start of the text: "call the handler", "ignore".
fn actions(handler_at: usize) -> Vec<u8> {
    let handler = BASE + (TEXT_AT + handler_at) as u64;
    let mut bytes = Vec::with_capacity(2 * SIGACTION_BYTES);
    for (what, flags) in [(handler, SA_RESTORER), (SIG_IGN, 0)] {
        for word in [what, flags, 0, 0] {
            bytes.extend_from_slice(&word.to_le_bytes());
        }
    }
    bytes
}

/// Returns the machine type, the text, and the entry's offset in it.
fn x86_64() -> (u16, Vec<u8>, usize) {
    const SYSCALL: [u8; 2] = [0x0f, 0x05];
    let handler_at = 2 * SIGACTION_BYTES;
    let mut text = actions(handler_at);
    let imm = |opcode: u8, value: u32| [&[opcode][..], &value.to_le_bytes()].concat();
    // handler: exit_group(0)
    text.extend([0x31, 0xff]); // xor edi, edi
    text.extend(imm(0xb8, 231)); // mov eax, exit_group
    text.extend(SYSCALL);
    let entry = text.len();
    text.extend([0x31, 0xd2]); // xor edx, edx: no old action wanted
    text.extend([0x41, 0xba, 8, 0, 0, 0]); // mov r10d, 8: size of the mask
    for (signal, action_at) in [(SIGTERM, 0), (SIGINT, 0), (SIGCHLD, SIGACTION_BYTES)] {
        text.extend(imm(0xbf, signal)); // mov edi, signal
        text.extend([0x48, 0x8d, 0x35]); // lea rsi, [rip + distance]
        let distance = action_at as i32 - (text.len() as i32 + 4);
        text.extend(distance.to_le_bytes());
        text.extend(imm(0xb8, 13)); // mov eax, rt_sigaction
        text.extend(SYSCALL);
    }
    text.extend(imm(0xb8, 34)); // again: mov eax, pause
    text.extend(SYSCALL);
    text.extend([0xeb, 0xf7]); // jmp again (9 bytes back)
    (62, text, entry)
}

fn aarch64() -> (u16, Vec<u8>, usize) {
    let handler_at = 2 * SIGACTION_BYTES;
    let mut text = actions(handler_at);
    let movz = |register: u32, value: u32| 0xd280_0000 | (value << 5) | register;
    let svc = 0xd400_0001_u32;
    let mut code: Vec<u32> = vec![movz(0, 0), movz(8, 94), svc]; // handler: exit_group(0)
    let entry = text.len() + 4 * code.len();
    for (signal, action_at) in [(SIGTERM, 0_usize), (SIGINT, 0), (SIGCHLD, SIGACTION_BYTES)] {
        code.push(movz(0, signal));
        let here = (text.len() + 4 * code.len()) as i32;
        let distance = (action_at as i32 - here) as u32;
        let adr = 0x1000_0000 | ((distance & 3) << 29) | (((distance >> 2) & 0x7_ffff) << 5) | 1;
        code.extend([adr, movz(2, 0), movz(3, 8), movz(8, 134), svc]); // rt_sigaction
    }
    // again: ppoll(NULL, 0, NULL, NULL, 0), because this architecture has no pause call
    code.extend([movz(0, 0), movz(1, 0), movz(2, 0), movz(3, 0), movz(4, 0), movz(8, 73), svc]);
    code.push(0x1400_0000 | (-7_i32 as u32 & 0x03ff_ffff)); // b again
    text.extend(code.iter().flat_map(|word| word.to_le_bytes()));
    (183, text, entry)
}

fn elf(machine: u16, text: &[u8], entry: usize) -> Vec<u8> {
    let size = (TEXT_AT + text.len()) as u64;
    let mut out = Vec::with_capacity(TEXT_AT + text.len());
    out.extend(b"\x7fELF\x02\x01\x01\0\0\0\0\0\0\0\0\0"); // 64 bits, little endian
    out.extend(2_u16.to_le_bytes()); // executable
    out.extend(machine.to_le_bytes());
    out.extend(1_u32.to_le_bytes());
    out.extend((BASE + (TEXT_AT + entry) as u64).to_le_bytes());
    out.extend((ELF_HEADER_BYTES as u64).to_le_bytes()); // program headers follow this header
    out.extend([0; 12]); // no sections, no flags
    for half in [ELF_HEADER_BYTES, PROGRAM_HEADER_BYTES, 2, 64, 0, 0] {
        out.extend((half as u16).to_le_bytes());
    }
    // The whole file, readable and executable.
    program_header(&mut out, 1, 5, [0, BASE, BASE, size, size, 0x1_0000]);
    // PT_GNU_STACK: readable and writable only.
    program_header(&mut out, 0x6474_e551, 6, [0, 0, 0, 0, 0, 16]);
    out.extend_from_slice(text);
    out
}

fn program_header(out: &mut Vec<u8>, kind: u32, flags: u32, words: [u64; 6]) {
    out.extend(kind.to_le_bytes());
    out.extend(flags.to_le_bytes());
    out.extend(words.iter().flat_map(|word| word.to_le_bytes()));
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt as _;
    use std::process::{Child, Command};

    use rustix::process::{Pid, Signal, kill_process};

    use super::*;

    fn start(dir: &std::path::Path) -> Child {
        let (written, path) = (dir.join("written"), dir.join("pause"));
        std::fs::write(&written, program(std::env::consts::ARCH).unwrap()).unwrap();
        // Another test may start a process while this one has the file open for writing; the kernel does not execute a
        // file that any process can still write. So the executed file is written by a process that has ended.
        let status = Command::new("install").args(["-m", "755"]).arg(&written).arg(&path).status().unwrap();
        assert!(status.success());
        Command::new(&path).spawn().unwrap()
    }

    /// Waits until the program sleeps in its loop with its handlers installed, as shown in /proc.
    fn wait_asleep(child: &Child) {
        let caught = |status: &str| {
            let line = status.lines().find(|l| l.starts_with("SigCgt:")).unwrap_or_default().to_owned();
            u64::from_str_radix(line.trim_start_matches("SigCgt:").trim(), 16).unwrap_or(0)
        };
        let both = (1 << (SIGTERM - 1)) | (1 << (SIGINT - 1));
        loop {
            let status = std::fs::read_to_string(format!("/proc/{}/status", child.id())).unwrap();
            let asleep = status.lines().any(|l| l.starts_with("State:") && l.contains('S'));
            if asleep && caught(&status) & both == both {
                let ignored = status.lines().find(|l| l.starts_with("SigIgn:")).unwrap();
                let ignored = u64::from_str_radix(ignored.trim_start_matches("SigIgn:").trim(), 16).unwrap();
                assert_ne!(ignored & (1 << (SIGCHLD - 1)), 0, "SIGCHLD is ignored");
                return;
            }
            std::thread::yield_now();
        }
    }

    #[test]
    fn it_sleeps_until_asked_to_end() {
        if program(std::env::consts::ARCH).is_none() {
            eprintln!("SKIPPED: no pause program for {}", std::env::consts::ARCH);
            return;
        }
        let dir = tempfile::tempdir().unwrap();
        for signal in [Signal::TERM, Signal::INT] {
            let mut child = start(dir.path());
            wait_asleep(&child);
            // A signal without a handler must not end the loop.
            kill_process(Pid::from_child(&child), Signal::CONT).unwrap();
            assert!(child.try_wait().unwrap().is_none());
            kill_process(Pid::from_child(&child), signal).unwrap();
            let status = child.wait().unwrap();
            assert_eq!((status.code(), status.signal()), (Some(0), None));
        }
    }

    #[test]
    fn it_is_tiny_and_every_processor_has_it() {
        for arch in ["x86_64", "aarch64"] {
            let program = program(arch).unwrap();
            assert!(program.len() < 512, "{arch}: {} bytes", program.len());
        }
        // The instructions of the second architecture, if no such machine runs this test: adr x1 refers from the first
        // sigaction call to the start of the text.
        let program = program("aarch64").unwrap();
        let at = TEXT_AT + 2 * SIGACTION_BYTES + 4 * 4;
        let adr = u32::from_le_bytes(program[at..at + 4].try_into().unwrap());
        let distance = (((adr >> 5) & 0x7_ffff) << 2) | ((adr >> 29) & 3);
        assert_eq!((distance as i32) << 11 >> 11, -(2 * SIGACTION_BYTES as i32 + 16));
    }
}
