//! The service as a run needs it: addresses looked up, requests written, TLS set up.

use crate::Error;
use crate::endpoint::Address;
use crate::plan::LoadPlan;
use crate::tls::Tls;
use crate::wire::Image;

/// Everything about the service that does not change in a run; all threads share it.
#[derive(Debug)]
pub(crate) struct Service {
    pub(crate) addresses: Vec<Address>,
    pub(crate) images: Vec<Image>,
    pub(crate) tls: Option<Tls>,
    pub(crate) is_http2: bool,
    streams: usize,
    requests_per_connection: Option<u64>,
}

impl Service {
    pub(crate) fn of(plan: &LoadPlan) -> Result<Self, Error> {
        let endpoint = &plan.endpoint;
        let images = plan.requests.iter();
        let images = images.map(|request| Image::new(request, endpoint, &plan.headers));
        Ok(Self {
            addresses: endpoint.addresses()?,
            images: images.collect::<Result<_, _>>()?,
            tls: endpoint
                .is_tls
                .then(|| Tls::to(&endpoint.host, plan.http2))
                .transpose()?,
            is_http2: plan.http2,
            streams: plan.streams,
            requests_per_connection: plan.requests_per_connection,
        })
    }

    /// Requests that one connection can have at once.
    pub(crate) fn streams(&self) -> usize {
        if self.is_http2 { self.streams } else { 1 }
    }

    /// Whether the `number`-th request of a connection, from 1, is its last.
    pub(crate) fn is_last(&self, number: u64) -> bool {
        self.requests_per_connection == Some(number)
    }
}
