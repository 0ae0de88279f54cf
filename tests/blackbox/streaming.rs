//! logs, exec, attach, cp, run and port-forward, byte for byte.
use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context as _, ensure};
use kelson_blackbox::{Needs::Node, Outcome, Subject, Test, eventually, lines_of};

use crate::pods::{IMAGE, ready, script};

/// The number of bytes copied in each direction.
const COPY_BYTES: u64 = 200 << 20;

pub fn tests() -> Vec<Test> {
    vec![
        Test { name: "streaming::logs", needs: Node, run: logs },
        Test { name: "streaming::exec", needs: Node, run: exec },
        Test { name: "streaming::exec_input_is_whole", needs: Node, run: exec_input },
        Test { name: "streaming::exec_terminal", needs: Node, run: exec_terminal },
        Test { name: "streaming::attach_to_a_terminal", needs: Node, run: attach_terminal },
        Test { name: "streaming::log_options_and_rotation", needs: Node, run: log_rotation },
        Test { name: "streaming::run_and_attach", needs: Node, run: run_and_attach },
        Test { name: "streaming::copy_both_ways", needs: Node, run: copy_both_ways },
        Test { name: "streaming::port_forward_under_load", needs: Node, run: port_forward },
        Test { name: "streaming::port_forward_to_a_closed_port", needs: Node, run: port_forward_refused },
    ]
}

fn logs(s: &Subject) -> Outcome {
    let k = s.kubectl.fresh_namespace("l-logs")?;
    k.apply(&script(
        "talk",
        "for i in 1 2 3; do echo line $i; done; printf 'no newline'; sleep 2; echo; echo last; sleep 600",
        "",
    ))?;
    ready(&k, "talk")?;
    let mut child = k.spawn(&["logs", "-f", "talk"])?;
    let lines = lines_of(&mut child)?;
    let followed: Vec<String> = (0..5).map_while(|_| lines.recv_timeout(Duration::from_secs(20)).ok()).collect();
    child.kill()?;
    child.wait()?;
    ensure!(followed == ["line 1", "line 2", "line 3", "no newline", "last"], "{followed:?}");
    ensure!(k.ok(&["logs", "talk", "--tail=1"])? == "last\n", "tail");
    ensure!(k.ok(&["logs", "talk", "--limit-bytes=6"])? == "line 1", "limit");
    ensure!(k.ok(&["logs", "talk", "--since=1h"])?.lines().count() == 5, "since");
    let stamped = k.ok(&["logs", "talk", "--timestamps", "--tail=1"])?;
    ensure!(stamped.contains('T') && stamped.trim().ends_with("Z last") || stamped.contains(" last"), "{stamped}");
    let none = k.fails(&["logs", "talk", "-c", "nope"])?;
    ensure!(none.stderr.contains("container nope is not valid for pod talk"), "{}", none.stderr);
    Ok(())
}

fn exec(s: &Subject) -> Outcome {
    let k = s.kubectl.fresh_namespace("l-exec")?;
    k.apply(&script("box", "sleep 6000", ""))?;
    ready(&k, "box")?;
    let out = k.run(&["exec", "box", "--", "sh", "-c", "echo out; echo err >&2; exit 7"])?;
    ensure!(out.code == 7 && out.stdout == "out\n" && out.stderr.starts_with("err\n"), "{out:?}");
    let data: Vec<u8> = (0..3_000_000u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    let sum = k.with_input(&["exec", "-i", "box", "--", "sh", "-c", "wc -c"], &data)?;
    ensure!(sum.stdout.trim() == "3000000", "half-close of stdin: {sum:?}");
    let big = k.ok(&["exec", "box", "--", "sh", "-c", "head -c 5000000 /dev/zero | tr '\\0' x"])?;
    ensure!(big.len() == 5_000_000, "no byte lost at the end: {}", big.len());
    let none = k.fails(&["exec", "box", "--", "/no/such/binary"])?;
    ensure!(none.stderr.contains("no such file or directory"), "{}", none.stderr);
    Ok(())
}

/// Every byte of standard input arrives, over both transports, also if the command's own output ends first. (Clusters
/// with containerd up to 2.2 lose input there: containerd#13934.)
fn exec_input(s: &Subject) -> Outcome {
    let k = s.kubectl.fresh_namespace("l-stdin")?;
    k.apply(&script("box", "sleep 6000", ""))?;
    ready(&k, "box")?;
    let data: Vec<u8> = (0..20_000_000u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    for websockets in ["true", "false"] {
        for size in [1, 32_768, 100_000, 1_000_000, data.len()] {
            let mut child = k
                .command(&["exec", "-i", "box", "--", "sh", "-c", "cat > /f"])
                .env("KUBECTL_REMOTE_COMMAND_WEBSOCKETS", websockets)
                .stdin(Stdio::piped())
                .spawn()?;
            child.stdin.take().context("stdin")?.write_all(&data[..size])?;
            ensure!(child.wait()?.success(), "websockets={websockets} {size}");
            let out = k.ok(&["exec", "box", "--", "sh", "-c", "wc -c < /f; sha256sum < /f"])?;
            let mut sum = Command::new("sha256sum").stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
            sum.stdin.take().context("stdin")?.write_all(&data[..size])?;
            let sum = String::from_utf8_lossy(&sum.wait_with_output()?.stdout).into_owned();
            ensure!(out == format!("{size}\n{sum}"), "websockets={websockets} {size}: {out}");
        }
    }
    Ok(())
}

/// Runs kubectl on a pseudo-terminal with this input, and returns its output.
fn on_terminal(command: &Command, input: &str) -> anyhow::Result<String> {
    let mut line: Vec<String> = vec![command.get_program().to_string_lossy().into_owned()];
    line.extend(command.get_args().map(|a| format!("'{}'", a.to_string_lossy())));
    let mut c = Command::new("script");
    for (key, value) in command.get_envs() {
        if let Some(v) = value {
            c.env(key, v);
        }
    }
    let mut child =
        c.args(["-qec", &line.join(" "), "/dev/null"]).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
    let mut stdin = child.stdin.take().context("stdin")?;
    stdin.write_all(input.as_bytes())?;
    // Kept open until the session has ended by itself.
    let mut all = String::new();
    child.stdout.take().context("stdout")?.read_to_string(&mut all)?;
    drop(stdin);
    child.wait()?;
    Ok(all)
}

fn attach_terminal(s: &Subject) -> Outcome {
    let k = s.kubectl.fresh_namespace("l-attach")?;
    k.apply(
        &script("shell", "x", "    stdin: true\n    tty: true\n").replace("command: [sh, -c, \"x\"]", "command: [sh]"),
    )?;
    ready(&k, "shell")?;
    let text = on_terminal(&k.command(&["attach", "-it", "shell"]), "echo sum $((40+2)); exit 9\r")?;
    ensure!(text.contains("sum 42"), "{text}");
    eventually("the shell's end", Duration::from_secs(60), || {
        let c = k.json(&["get", "pod", "shell"])?["status"]["containerStatuses"][0].clone();
        let code = |state: &str| c[state]["terminated"]["exitCode"].as_i64();
        ensure!(code("state").or(code("lastState")) == Some(9), "{c}");
        Ok(())
    })
}

fn log_rotation(s: &Subject) -> Outcome {
    let k = s.kubectl.fresh_namespace("l-rotate")?;
    // 28 MB in 20 s: more than two files of 10 MiB, checked every 10 s.
    let pad = "x".repeat(180);
    k.apply(&script(
        "loud",
        &format!("i=0; while [ $i -lt 120000 ]; do i=$((i+1)); echo $i {pad}; [ $((i % 600)) = 0 ] && sleep 0.1; done; echo end; sleep 600"),
        "",
    ))?;
    ready(&k, "loud")?;
    let mut child = k.spawn(&["logs", "-f", "loud"])?;
    let lines = lines_of(&mut child)?;
    let mut next = 1u32;
    while let Ok(line) = lines.recv_timeout(Duration::from_secs(60)) {
        let word = line.split(' ').next().unwrap_or_default();
        if word == "end" {
            break;
        }
        ensure!(word == next.to_string(), "line {next} was {word}");
        next += 1;
    }
    child.kill()?;
    child.wait()?;
    ensure!(next == 120_001, "followed to {next}");
    // Rotated data is not shown, only the newest file.
    let rest = eventually("a rotation", Duration::from_secs(40), || {
        let rest = k.ok(&["logs", "loud"])?;
        ensure!(rest.lines().count() < 120_001, "not rotated");
        Ok(rest)
    })?;
    ensure!(rest.is_empty() || rest.ends_with("end\n"), "{}", rest.len());

    k.apply(&script("twice", "echo run; date +%s; sleep 2; exit 1", ""))?;
    eventually("a restart", Duration::from_secs(60), || {
        let count = k.ok(&["get", "pod", "twice", "-o", "jsonpath={.status.containerStatuses[0].restartCount}"])?;
        ensure!(count.parse::<u32>()? >= 1, "{count}");
        Ok(())
    })?;
    let previous = k.ok(&["logs", "twice", "--previous"])?;
    ensure!(previous.starts_with("run\n") && previous.lines().count() == 2, "{previous}");
    ensure!(k.ok(&["logs", "twice", "--previous", "--since-time=2100-01-01T00:00:00Z"])?.is_empty(), "since-time");
    ensure!(k.ok(&["logs", "twice", "--previous", "--since-time=2000-01-01T00:00:00Z"])? == previous, "since-time");
    ensure!(k.ok(&["logs", "twice", "--previous", "--tail=1", "--limit-bytes=3"])?.len() == 3, "both limits");
    Ok(())
}

fn exec_terminal(s: &Subject) -> Outcome {
    let k = s.kubectl.fresh_namespace("l-tty")?;
    k.apply(&script("box", "sleep 6000", ""))?;
    ready(&k, "box")?;
    // `script` gives kubectl a pseudo-terminal.
    let inner =
        k.command(&["exec", "-it", "box", "--", "sh", "-c", "sleep 1; stty size; test -t 0 && echo terminal; exit 5"]);
    let mut line: Vec<String> = vec![inner.get_program().to_string_lossy().into_owned()];
    line.extend(inner.get_args().map(|a| format!("'{}'", a.to_string_lossy())));
    let mut c = Command::new("script");
    for (key, value) in inner.get_envs() {
        if let Some(v) = value {
            c.env(key, v);
        }
    }
    let shell = format!("stty rows 33 cols 101; {}", line.join(" "));
    let out = c.args(["-qec", &shell, "/dev/null"]).stdin(Stdio::null()).output()?;
    let text = String::from_utf8_lossy(&out.stdout);
    ensure!(text.contains("33 101") && text.contains("terminal"), "{text}");
    ensure!(out.status.code() == Some(5), "exit code {:?}: {text}", out.status.code());
    Ok(())
}

fn run_and_attach(s: &Subject) -> Outcome {
    let k = s.kubectl.fresh_namespace("l-run")?;
    let image = format!("--image={IMAGE}");
    let out = k.with_input(
        &["run", "once", "-i", "--rm", "--restart=Never", &image, "--", "sh", "-c", "cat; exit 0"],
        b"hello from stdin\n",
    )?;
    ensure!(out.code == 0 && out.stdout.contains("hello from stdin"), "{out:?}");
    ensure!(out.stdout.contains("pod \"once\" deleted"), "{out:?}");
    Ok(())
}

fn copy_both_ways(s: &Subject) -> Outcome {
    let k = s.kubectl.fresh_namespace("l-cp")?;
    k.apply(&script("box", "sleep 6000", ""))?;
    ready(&k, "box")?;
    let dir = tempfile::tempdir()?;
    let (there, back) = (dir.path().join("there"), dir.path().join("back"));
    let mut file = std::io::BufWriter::new(std::fs::File::create(&there)?);
    let mut x = 88_172_645_463_325_252u64;
    for _ in 0..COPY_BYTES / 8 {
        // xorshift: cheap bytes that no layer can compress or repeat by accident.
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        file.write_all(&x.to_le_bytes())?;
    }
    file.into_inner()?.sync_all()?;
    let sum = |path: &std::path::Path| -> anyhow::Result<String> {
        let out = Command::new("sha256sum").arg(path).output()?;
        Ok(String::from_utf8_lossy(&out.stdout).split_whitespace().next().unwrap_or_default().to_owned())
    };
    k.ok(&["cp", &there.display().to_string(), "box:/tmp/file"])?;
    let inside = k.ok(&["exec", "box", "--", "sha256sum", "/tmp/file"])?;
    ensure!(inside.split_whitespace().next() == Some(sum(&there)?.as_str()), "up: {inside}");
    k.ok(&["cp", "box:/tmp/file", &back.display().to_string()])?;
    ensure!(sum(&there)? == sum(&back)?, "down");
    Ok(())
}

fn port_forward(s: &Subject) -> Outcome {
    let k = s.kubectl.fresh_namespace("l-pf")?;
    // kubectl ends with the first connection that is not accepted.
    let listens = "    readinessProbe: {tcpSocket: {port: 8080}, periodSeconds: 1}\n";
    k.apply(&script("web", "mkdir /www; head -c 300000 /dev/zero | tr '\\0' y > /www/big; echo hi > /www/index.html; exec httpd -f -p 8080 -h /www", listens))?;
    ready(&k, "web")?;
    let mut child = k.spawn(&["port-forward", "pod/web", ":8080"])?;
    let lines = lines_of(&mut child)?;
    let first = lines.recv_timeout(Duration::from_secs(20)).context("the forwarded port")?;
    let result = (|| {
        let port: u16 = first.split(':').nth(1).and_then(|t| t.split(' ').next()).context("port")?.parse()?;
        let get = move |path: &str| -> anyhow::Result<usize> {
            let mut c = TcpStream::connect(("127.0.0.1", port))?;
            c.set_read_timeout(Some(Duration::from_secs(20)))?;
            write!(c, "GET {path} HTTP/1.0\r\n\r\n")?;
            let mut all = Vec::new();
            c.read_to_end(&mut all)?;
            Ok(all.windows(4).position(|w| w == b"\r\n\r\n").map_or(0, |i| all.len() - i - 4))
        };
        eventually("the first request", Duration::from_secs(60), || {
            ensure!(get("/index.html")? == 3, "body");
            Ok(())
        })?;
        let workers: Vec<_> = (0..8)
            .map(|_| {
                std::thread::spawn(move || -> anyhow::Result<()> {
                    for _ in 0..25 {
                        let n = get("/big")?;
                        ensure!(n == 300_000, "{n} bytes");
                    }
                    Ok(())
                })
            })
            .collect();
        // A client that disconnects in the middle must not end the others.
        for _ in 0..10 {
            let mut c = TcpStream::connect(("127.0.0.1", port))?;
            write!(c, "GET /big HTTP/1.0\r\n\r\n")?;
            drop(c);
        }
        for w in workers {
            w.join().map_err(|_| anyhow::anyhow!("a worker panicked"))??;
        }
        ensure!(get("/index.html")? == 3, "still there");
        Ok(())
    })();
    child.kill().ok();
    child.wait()?;
    result
}

fn port_forward_refused(s: &Subject) -> Outcome {
    let k = s.kubectl.fresh_namespace("l-pf-none")?;
    k.apply(&script("silent", "sleep 6000", ""))?;
    ready(&k, "silent")?;
    let mut child = k.spawn(&["port-forward", "pod/silent", ":9"])?;
    let lines = lines_of(&mut child)?;
    let first = lines.recv_timeout(Duration::from_secs(20)).context("the forwarded port")?;
    let port: u16 = first.split(':').nth(1).and_then(|t| t.split(' ').next()).context("port")?.parse()?;
    let mut c = TcpStream::connect(("127.0.0.1", port))?;
    c.set_read_timeout(Some(Duration::from_secs(20)))?;
    let read = c.read(&mut [0; 1]);
    ensure!(matches!(read, Ok(0) | Err(_)), "nothing comes");
    let mut said = String::new();
    let mut stderr = child.stderr.take().context("stderr")?;
    // kubectl ends when it is signalled; otherwise the kill ends the reading.
    std::thread::sleep(Duration::from_millis(500));
    child.kill().ok();
    child.wait()?;
    stderr.read_to_string(&mut said)?;
    ensure!(said.contains("error forwarding port 9 to pod") && said.contains("connection refused"), "{said}");
    Ok(())
}
