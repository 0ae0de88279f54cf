//! Kelson streams: SPDY/3.1, WebSocket channels and the port-forward tunnel.
