//! Calls to systemd and logind on a fake bus in this process, including file descriptors; and on the real `dbus-daemon` if one is
//! installed, which rejects invalid messages.
use std::io::Write as _;
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use kelson_kubelet::systemd::bus::{Bus, BusError};
use kelson_kubelet::systemd::logind::Logind;
use kelson_kubelet::systemd::units::Slices;
use kelson_kubelet::systemd::wire::{FIXED_BYTES, Message, MessageKind, Value};
use parking_lot::Mutex;
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags};

/// Received calls, and logind's settings.
#[derive(Default)]
struct Machine {
    asked: Mutex<Vec<String>>,
    delay: Mutex<u64>,
    /// Other ends of the locks that were handed out.
    locks: Mutex<Vec<OwnedFd>>,
    units: Mutex<Vec<String>>,
    /// Properties of the last unit that was created.
    properties: Mutex<Vec<Value>>,
    connections: Mutex<Vec<UnixStream>>,
}

fn read_exactly(from: &mut UnixStream, n: usize) -> Option<Vec<u8>> {
    use std::io::Read as _;
    let mut bytes = vec![0; n];
    from.read_exact(&mut bytes).ok().map(|()| bytes)
}

fn line(from: &mut UnixStream) -> Option<String> {
    let mut line = Vec::new();
    while !line.ends_with(b"\r\n") {
        line.extend(read_exactly(from, 1)?);
    }
    Some(String::from_utf8_lossy(&line).trim_start_matches('\0').trim_end().to_owned())
}

fn message(from: &mut UnixStream) -> Option<Message> {
    let mut bytes = read_exactly(from, FIXED_BYTES)?;
    let fixed: [u8; FIXED_BYTES] = bytes.clone().try_into().expect("so many");
    let rest = Message::length(&fixed).expect("a message") - FIXED_BYTES;
    bytes.extend(read_exactly(from, rest)?);
    Message::decode(&bytes).expect("a message")
}

impl Machine {
    fn listen(socket: &Path) -> Arc<Self> {
        let me = Arc::new(Self { delay: Mutex::new(5_000_000), ..Self::default() });
        let (listener, own) = (UnixListener::bind(socket).expect("a socket"), Arc::clone(&me));
        std::thread::spawn(move || {
            for connection in listener.incoming().flatten() {
                let me = Arc::clone(&own);
                me.connections.lock().push(connection.try_clone().expect("a descriptor"));
                std::thread::spawn(move || me.serve(connection));
            }
        });
        me
    }

    fn serve(&self, mut client: UnixStream) -> Option<()> {
        assert!(line(&mut client)?.starts_with("AUTH EXTERNAL "));
        client.write_all(b"OK 1234\r\n").ok()?;
        assert_eq!(line(&mut client)?, "NEGOTIATE_UNIX_FD");
        client.write_all(b"AGREE_UNIX_FD\r\n").ok()?;
        assert_eq!(line(&mut client)?, "BEGIN");
        loop {
            let call = message(&mut client)?;
            let mut answer = Message::call("", "", "", "", Vec::new());
            (answer.kind, answer.serial, answer.answers) = (MessageKind::Return, 1, Some(call.serial));
            let mut lock = None;
            match self.answer(&call, &mut lock) {
                Ok(body) => answer.body = body,
                Err(name) => {
                    answer.kind = MessageKind::Error;
                    answer.error = name.to_owned();
                    answer.body = vec![Value::text("in words")];
                }
            }
            answer.descriptors = u32::from(lock.is_some());
            let bytes = answer.encode();
            match lock {
                None => client.write_all(&bytes).ok()?,
                Some(lock) => {
                    let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
                    let mut beside = SendAncillaryBuffer::new(&mut space);
                    let all = [lock.as_fd()];
                    assert!(beside.push(SendAncillaryMessage::ScmRights(&all)));
                    let bytes = [std::io::IoSlice::new(&bytes)];
                    rustix::net::sendmsg(&client, &bytes, &mut beside, SendFlags::empty()).ok()?;
                }
            }
        }
    }

    fn answer(&self, call: &Message, lock: &mut Option<OwnedFd>) -> Result<Vec<Value>, &'static str> {
        let texts: Vec<&str> =
            call.body.iter().filter_map(|v| if let Value::Text(t) = v { Some(t.as_str()) } else { None }).collect();
        self.asked.lock().push(format!("{} {}", call.member, texts.join(" ")));
        match call.member.as_str() {
            "Hello" => Ok(vec![Value::text(":1.1")]),
            "AddMatch" | "SetUnitProperties" => Ok(Vec::new()),
            "Get" => Ok(vec![Value::Variant(Box::new(Value::U64(*self.delay.lock())))]),
            "KillUnit" => {
                *self.delay.lock() = 90_000_000;
                Ok(Vec::new())
            }
            "Inhibit" => {
                let (ours, theirs) = rustix::pipe::pipe().expect("a pipe");
                self.locks.lock().push(ours);
                *lock = Some(theirs);
                Ok(vec![Value::Descriptor(0)])
            }
            "StartTransientUnit" => {
                let name = texts[0].to_owned();
                if self.units.lock().contains(&name) {
                    return Err("org.freedesktop.systemd1.UnitExists");
                }
                self.units.lock().push(name);
                if let Some(Value::Array(_, properties)) = call.body.get(2) {
                    self.properties.lock().clone_from(properties);
                }
                Ok(vec![Value::Path("/org/freedesktop/systemd1/job/1".to_owned())])
            }
            "StopUnit" => {
                let mut units = self.units.lock();
                let at = units.iter().position(|u| u == texts[0]).ok_or("org.freedesktop.systemd1.NoSuchUnit")?;
                units.remove(at);
                Ok(vec![Value::Path("/org/freedesktop/systemd1/job/2".to_owned())])
            }
            _ => Err("org.freedesktop.DBus.Error.UnknownMethod"),
        }
    }

    fn say(&self, begins: bool) {
        let mut signal = Message::call("", "/org/freedesktop/login1", "org.freedesktop.login1.Manager", "", Vec::new());
        (signal.kind, signal.serial, signal.member) = (MessageKind::Signal, 9, "PrepareForShutdown".to_owned());
        signal.body = vec![Value::Bool(begins)];
        for mut connection in self.connections.lock().iter() {
            // A closed connection receives nothing.
            let _ = connection.write_all(&signal.encode());
        }
    }
}

fn held(lock: &OwnedFd) -> bool {
    let mut byte = [0];
    rustix::io::ioctl_fionbio(lock, true).expect("a pipe");
    rustix::io::read(lock, &mut byte) == Err(rustix::io::Errno::AGAIN)
}

/// Waits until the lock is released: the sender's copy may live a little longer than the message that carried it.
fn released(lock: OwnedFd) -> bool {
    let (sender, outcome) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        rustix::io::ioctl_fionbio(&lock, false).expect("a pipe");
        sender.send(rustix::io::read(&lock, &mut [0]))
    });
    outcome.recv_timeout(Duration::from_secs(60)) == Ok(Ok(0))
}

#[tokio::test]
async fn an_inhibitor_lock_delays_the_shutdown() {
    let dir = tempfile::tempdir().expect("a directory");
    let socket = dir.path().join("bus");
    let machine = Machine::listen(&socket);
    let mut logind = Logind::connect(&socket).await.expect("a bus").with_settings(&dir.path().join("conf.d"));
    assert_eq!(logind.delay_max().await.expect("a number"), Duration::from_secs(5));
    logind.allow_delay(Duration::from_secs(5)).await.expect("long enough");
    assert!(!dir.path().join("conf.d").exists(), "nothing to change");
    logind.allow_delay(Duration::from_secs(60)).await.expect("longer now");
    let settings = std::fs::read_to_string(dir.path().join("conf.d/99-kubelet.conf")).expect("settings");
    assert!(settings.lines().any(|l| l == "InhibitDelayMaxSec=60"), "{settings}");
    let why = logind.allow_delay(Duration::from_secs(100)).await.expect_err("logind does not go so far");
    assert!(why.to_string().contains("shutdownGracePeriod"), "{why}");

    let lock = logind.lock().await.expect("a lock");
    assert!(held(&machine.locks.lock()[0]));
    machine.say(true);
    machine.say(false);
    assert!(logind.shutdown().await.expect("it begins"));
    drop(lock);
    let other_end = machine.locks.lock().remove(0);
    assert!(released(other_end), "the machine goes on");
    assert!(!logind.shutdown().await.expect("it is called off"));
    assert!(machine.asked.lock().contains(&"KillUnit systemd-logind.service all".to_owned()));
}

#[tokio::test]
async fn slices_are_made_once_and_end() {
    let dir = tempfile::tempdir().expect("a directory");
    let socket = dir.path().join("bus");
    let machine = Machine::listen(&socket);
    let slices = Slices::new(&socket);
    for _ in 0..2 {
        slices.make("kubepods-podu.slice", "kubepods.slice").await.expect("made, or there");
    }
    slices.set("kubepods-podu.slice", &[("MemoryMax", 5)]).await.expect("set");
    slices.set("kubepods-podu.slice", &[]).await.expect("nothing to set");
    assert_eq!(*machine.units.lock(), ["kubepods-podu.slice"]);
    // The bus restarts; the next call connects again.
    machine.connections.lock().drain(..).for_each(|c| c.shutdown(std::net::Shutdown::Both).expect("open"));
    for _ in 0..2 {
        slices.end("kubepods-podu.slice").await.expect("ended, or gone");
    }
    assert!(machine.units.lock().is_empty());
    let asked = machine.asked.lock().clone();
    let count = |what: &str| asked.iter().filter(|a| a.starts_with(what)).count();
    assert_eq!((count("Hello"), count("SetUnitProperties"), count("StopUnit")), (2, 1, 2), "{asked:?}");
}

#[tokio::test]
async fn a_process_is_moved_into_its_scope() {
    let dir = tempfile::tempdir().expect("a directory");
    let socket = dir.path().join("bus");
    let machine = Machine::listen(&socket);
    let slices = Slices::new(&socket);
    slices.scope("kelson-1-containerd-77.scope", "containerd", 77).await.expect("made");
    assert_eq!(*machine.units.lock(), ["kelson-1-containerd-77.scope"]);
    let properties = machine.properties.lock().clone();
    let value = |name: &str| {
        properties.iter().find_map(|p| match p {
            Value::Struct(pair) if pair[0] == Value::text(name) => Some(pair[1].clone()),
            _ => None,
        })
    };
    let variant = |value: Value| Some(Value::Variant(Box::new(value)));
    assert_eq!(value("PIDs"), variant(Value::Array("u".into(), vec![Value::U32(77)])));
    assert_eq!(value("Delegate"), variant(Value::Bool(true)));
    let again = slices.scope("kelson-1-containerd-77.scope", "containerd", 77).await;
    assert!(again.is_err(), "the process would not be in it");
}

#[tokio::test]
async fn a_missing_bus_is_reported() {
    let error = Bus::connect(Path::new("/nowhere/bus")).await.expect_err("no bus");
    assert!(matches!(error, BusError::Connection(_)), "{error}");
}

/// The real daemon on a private bus.
struct Daemon {
    process: std::process::Child,
    socket: PathBuf,
    _dir: tempfile::TempDir,
}

impl Drop for Daemon {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

#[tokio::test]
#[ignore = "needs dbus-daemon: cargo test -p kelson-kubelet --test suite -- --ignored systemd::"]
async fn the_real_daemon_takes_our_messages() {
    let dir = tempfile::tempdir().expect("a directory");
    let socket = dir.path().join("bus");
    let process = std::process::Command::new("dbus-daemon")
        .args(["--session", "--nofork", "--address", &format!("unix:path={}", socket.display())])
        .spawn()
        .expect("dbus-daemon");
    let daemon = Daemon { process, socket, _dir: dir };
    while !daemon.socket.exists() {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let mut bus = Bus::connect(&daemon.socket).await.expect("connected");
    bus.listen("type='signal',member='NameOwnerChanged'").await.expect("a rule that it takes");
    let name = "org.freedesktop.DBus";
    let call = |member: &str, body| Message::call(name, "/org/freedesktop/DBus", name, member, body);
    let names = bus.call(call("ListNames", Vec::new())).await.expect("names").body;
    let Some(Value::Array(_, names)) = names.first() else { panic!("{names:?}") };
    assert!(names.contains(&Value::text(name)));
    let refused = bus.call(call("NoSuchMethod", Vec::new())).await.expect_err("unknown");
    assert!(matches!(&refused, BusError::Refused { name, .. } if name.ends_with("UnknownMethod")), "{refused}");
    // A new connection causes a signal of the daemon.
    let _other = Bus::connect(&daemon.socket).await.expect("connected");
    // The daemon sent one for our own connection before.
    while bus.signal().await.expect("a signal").member != "NameOwnerChanged" {}
    // No process owns systemd's name, but the daemon validates the whole message first.
    let refused = Slices::new(&daemon.socket).make("a.slice", "-.slice").await.expect_err("no service");
    assert!(matches!(&refused, BusError::Refused { name, .. } if name.ends_with("ServiceUnknown")), "{refused}");
}
