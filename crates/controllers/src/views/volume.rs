//! Claims, volumes and storage classes: views that are shared with the scheduler.
pub use kelson_volumes::{ClaimView, StorageClassView, VolumeView};

use super::index::Indexed;

impl Indexed for ClaimView {}
impl Indexed for VolumeView {}
impl Indexed for StorageClassView {}
