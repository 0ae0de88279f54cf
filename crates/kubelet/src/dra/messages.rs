//! Messages of `k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin`, which v1beta1 shares, and of `v1alpha1.DRAResourceHealth`.
use std::collections::HashMap;

use prost::Message;

/// Request to prepare or unprepare claims.
#[derive(Clone, PartialEq, Message)]
pub struct ClaimsRequest {
    #[prost(message, repeated, tag = "1")]
    pub claims: Vec<ClaimName>,
}

/// Identity of a claim.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct ClaimName {
    #[prost(string, tag = "1")]
    pub namespace: String,
    #[prost(string, tag = "2")]
    pub uid: String,
    #[prost(string, tag = "3")]
    pub name: String,
}

/// Response of `NodePrepareResources`: result of each claim, by UID.
#[derive(Clone, PartialEq, Message)]
pub struct PrepareAnswer {
    #[prost(map = "string, message", tag = "1")]
    pub claims: HashMap<String, PreparedClaim>,
}

/// A prepared claim, or the error.
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
    /// Names of the claim's requests that the device is for; empty means all.
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

/// Response of `NodeUnprepareResources`: result of each claim, by UID.
#[derive(Clone, PartialEq, Message)]
pub struct UnprepareAnswer {
    #[prost(map = "string, message", tag = "1")]
    pub claims: HashMap<String, UnpreparedClaim>,
}

/// Error of unpreparing a claim; empty on success.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct UnpreparedClaim {
    #[prost(string, tag = "1")]
    pub error: String,
}

/// Request of `NodeWatchResources`.
#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub struct HealthRequest {}

/// Health of all devices of a driver.
#[derive(Clone, PartialEq, Message)]
pub struct DriverHealthList {
    #[prost(message, repeated, tag = "1")]
    pub devices: Vec<DriverDeviceHealth>,
}

/// Health of one device.
#[derive(Clone, PartialEq, Message)]
pub struct DriverDeviceHealth {
    #[prost(message, optional, tag = "1")]
    pub device: Option<DriverDeviceName>,
    /// 1 for healthy, 2 for unhealthy.
    #[prost(int32, tag = "2")]
    pub health: i32,
    #[prost(int64, tag = "3")]
    pub last_updated_time: i64,
    /// Validity in seconds; values that are not positive mean the default.
    #[prost(int64, tag = "4")]
    pub health_check_timeout_seconds: i64,
    #[prost(string, tag = "5")]
    pub message: String,
}

/// Pool and name of a device.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct DriverDeviceName {
    #[prost(string, tag = "1")]
    pub pool_name: String,
    #[prost(string, tag = "2")]
    pub device_name: String,
}
