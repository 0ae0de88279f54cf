//! The messages of `k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin`, which are those of v1beta1 as well, and of `v1alpha1.DRAResourceHealth`.
use std::collections::HashMap;

use prost::Message;

/// Claims that are to be made ready, or no longer to be.
#[derive(Clone, PartialEq, Message)]
pub struct ClaimsRequest {
    #[prost(message, repeated, tag = "1")]
    pub claims: Vec<ClaimName>,
}

/// By what a driver knows a claim.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct ClaimName {
    #[prost(string, tag = "1")]
    pub namespace: String,
    #[prost(string, tag = "2")]
    pub uid: String,
    #[prost(string, tag = "3")]
    pub name: String,
}

/// What became of each claim, by UID.
#[derive(Clone, PartialEq, Message)]
pub struct PrepareAnswer {
    #[prost(map = "string, message", tag = "1")]
    pub claims: HashMap<String, PreparedClaim>,
}

/// A claim that is ready, or why it is not.
#[derive(Clone, PartialEq, Message)]
pub struct PreparedClaim {
    #[prost(message, repeated, tag = "1")]
    pub devices: Vec<ClaimDevice>,
    #[prost(string, tag = "2")]
    pub error: String,
}

/// A device of a claim.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct ClaimDevice {
    /// The requests of the claim that it is for; all where there is none.
    #[prost(string, repeated, tag = "1")]
    pub request_names: Vec<String>,
    #[prost(string, tag = "2")]
    pub pool_name: String,
    #[prost(string, tag = "3")]
    pub device_name: String,
    #[prost(string, repeated, tag = "4")]
    pub cdi_device_ids: Vec<String>,
    #[prost(string, optional, tag = "5")]
    pub share_id: Option<String>,
}

/// What became of each claim, by UID.
#[derive(Clone, PartialEq, Message)]
pub struct UnprepareAnswer {
    #[prost(map = "string, message", tag = "1")]
    pub claims: HashMap<String, UnpreparedClaim>,
}

/// Why a claim is ready still; nothing where it is not.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct UnpreparedClaim {
    #[prost(string, tag = "1")]
    pub error: String,
}

/// Asks how a driver's devices are, for as long as it says.
#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub struct HealthRequest {}

/// How all of them are now.
#[derive(Clone, PartialEq, Message)]
pub struct DriverHealthList {
    #[prost(message, repeated, tag = "1")]
    pub devices: Vec<DriverDeviceHealth>,
}

/// How one is.
#[derive(Clone, PartialEq, Message)]
pub struct DriverDeviceHealth {
    #[prost(message, optional, tag = "1")]
    pub device: Option<DriverDeviceName>,
    /// 1 for a device that works, 2 for one that does not.
    #[prost(int32, tag = "2")]
    pub health: i32,
    #[prost(int64, tag = "3")]
    pub last_updated_time: i64,
    /// For how many seconds this holds; what is not above zero says nothing.
    #[prost(int64, tag = "4")]
    pub health_check_timeout_seconds: i64,
    #[prost(string, tag = "5")]
    pub message: String,
}

/// A device by its names in a driver.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct DriverDeviceName {
    #[prost(string, tag = "1")]
    pub pool_name: String,
    #[prost(string, tag = "2")]
    pub device_name: String,
}
