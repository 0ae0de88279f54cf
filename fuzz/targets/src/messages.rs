//! Messages on the wire: DNS, SPDY, WebSocket, answers of a container runtime, its calls of the CNI plugin.
use std::sync::Arc;

use bytes::BytesMut;
use hickory_proto::op::Message;
use kelson_dns::{Directory, Zone};
use kelson_streams::spdy::frame::FrameDecoder;
use kelson_streams::ws::Role;
use kelson_streams::ws::frame::Decoder;
use prost::Message as _;

pub(crate) fn dns(data: &[u8]) {
    let Ok(message) = Message::from_vec(data) else { return };
    let Ok(zone) = Zone::new("cluster.local", Arc::<Directory>::default()) else { return };
    for query in &message.queries {
        let _answer = zone.answer(query);
    }
    let _bytes = message.to_vec();
}

/// Frames come in pieces: the first byte says how large.
fn pieces(data: &[u8], mut feed: impl FnMut(&mut BytesMut) -> bool) {
    let Some((first, data)) = data.split_first() else { return };
    let mut input = BytesMut::new();
    for piece in data.chunks(usize::from(*first).max(1)) {
        input.extend_from_slice(piece);
        if !feed(&mut input) {
            return;
        }
    }
}

pub(crate) fn spdy(data: &[u8]) {
    let mut decoder = FrameDecoder::new();
    pieces(data, |input| {
        loop {
            match decoder.decode(input) {
                Ok(Some(_)) => {}
                Ok(None) => return true,
                Err(_) => return false,
            }
        }
    });
}

pub(crate) fn websocket(data: &[u8]) {
    for role in [Role::Server, Role::Client] {
        let mut decoder = Decoder::new(role);
        pieces(data, |input| {
            loop {
                match decoder.decode(input) {
                    Ok(Some(_)) => {}
                    Ok(None) => return true,
                    Err(_) => return false,
                }
            }
        });
    }
}

pub(crate) fn cri(data: &[u8]) {
    use kelson_cri::proto;
    macro_rules! each {
        ($($ty:ident),* $(,)?) => {
            $(if let Ok(answer) = proto::$ty::decode(data) { let _again = answer.encode_to_vec(); })*
        };
    }
    each!(
        VersionResponse,
        StatusResponse,
        ListPodSandboxResponse,
        PodSandboxStatusResponse,
        ListContainersResponse,
        ContainerStatusResponse,
        ListImagesResponse,
        ImageStatusResponse,
        ListContainerStatsResponse,
        ContainerEventResponse,
    );
}

/// A container's ID, an interface's name and a configuration, parted by zero bytes.
pub(crate) fn cni(data: &[u8]) {
    let (container, rest) = crate::input::halves(data);
    let (ifname, configuration) = crate::input::halves(rest);
    let (container, ifname) = (String::from_utf8_lossy(container), String::from_utf8_lossy(ifname));
    for command in ["ADD", "DEL", "CHECK", "GC", "STATUS", "VERSION"] {
        let sound = kelson_net::cni::is_sound(command, &container, &ifname, configuration);
        // Both become parts of paths and of names in the kernel.
        let odd = container.starts_with('.')
            || container.contains(['/', ' ', '"', '\n'])
            || ifname.contains(['/', ' ', '\n'])
            || ifname.len() > 15;
        assert!(!sound || !odd, "{command} of {container:?} {ifname:?} would be carried out");
    }
}
