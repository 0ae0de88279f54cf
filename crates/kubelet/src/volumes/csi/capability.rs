//! Volume capabilities for CSI calls. Pure.
use crate::csi::client::{AccessMode, BlockVolume, MountVolume, SINGLE_NODE_MULTI_WRITER, VolumeCapability};

/// Returns CSI's number of the first access mode of the volume, like upstream. For drivers with `SINGLE_NODE_MULTI_WRITER` the modes of a
/// single node distinguish one writer from several.
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

/// Builds the capability of a block or file system volume, without a mount group.
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
    fn access_modes_of_volumes() {
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
