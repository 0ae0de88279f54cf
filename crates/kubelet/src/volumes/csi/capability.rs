//! How a volume is used, as drivers are told. Pure.
use crate::csi::client::{AccessMode, BlockVolume, MountVolume, SINGLE_NODE_MULTI_WRITER, VolumeCapability};

/// The interface's number of how a volume may be used at once, of which the first that the volume names counts (as
/// upstream). Drivers that know of several writers on one node are told whether there may be.
fn access_mode(modes: &[String], knows_writers: bool) -> i32 {
    match (modes.first().map_or("ReadWriteOnce", String::as_str), knows_writers) {
        ("ReadWriteOnce" | "ReadWriteOncePod", false) => 1,
        ("ReadOnlyMany", _) => 3,
        ("ReadWriteMany", _) => 5,
        ("ReadWriteOncePod", true) => 6,
        ("ReadWriteOnce", true) => 7,
        _ => 0,
    }
}

/// How a volume is used, whoever uses it.
pub(super) fn plain_capability(
    is_block: bool,
    (modes, abilities): (&[String], &[i32]),
    (fs_type, flags): (&str, &[String]),
) -> VolumeCapability {
    let mode = access_mode(modes, abilities.contains(&SINGLE_NODE_MULTI_WRITER));
    let access_mode = Some(AccessMode { mode });
    if is_block {
        return VolumeCapability { block: Some(BlockVolume {}), mount: None, access_mode };
    }
    let (fs_type, mount_flags) = (fs_type.to_owned(), flags.to_vec());
    let mount = MountVolume { fs_type, mount_flags, volume_mount_group: String::new() };
    VolumeCapability { block: None, mount: Some(mount), access_mode }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn how_a_volume_may_be_used() {
        for (modes, plain, knowing) in [
            (&["ReadWriteOnce"][..], 1, 7),
            (&["ReadWriteOncePod"], 1, 6),
            (&["ReadOnlyMany"], 3, 3),
            (&["ReadWriteMany"], 5, 5),
            (&["ReadWriteOnce", "ReadWriteMany"], 1, 7),
            (&["ReadOnlyMany", "ReadWriteOnce"], 3, 3),
            (&[], 1, 7),
        ] {
            let modes: Vec<String> = modes.iter().map(|m| (*m).to_owned()).collect();
            assert_eq!((access_mode(&modes, false), access_mode(&modes, true)), (plain, knowing), "{modes:?}");
        }
    }
}
