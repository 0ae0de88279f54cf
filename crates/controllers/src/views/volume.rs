//! Claims, volumes and storage classes: the views that the scheduler has too.
pub use kelson_volumes::{ClaimView, StorageClassView, VolumeView};

use super::index::Indexed;

impl Indexed for ClaimView {}
impl Indexed for VolumeView {}
impl Indexed for StorageClassView {}
