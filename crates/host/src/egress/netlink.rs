//! Queue disciplines, classes and filters by rtnetlink. Message and attribute formats:
//! linux/pkt_sched.h, linux/pkt_cls.h.

use std::io;
use std::os::fd::{AsRawFd as _, OwnedFd};

use netlink_packet_core::{
    DefaultNla, NLM_F_ACK, NLM_F_CREATE, NLM_F_DUMP, NLM_F_EXCL, NLM_F_REQUEST, NetlinkHeader,
    NetlinkMessage, NetlinkPayload, NlasIterator,
};
use netlink_packet_route::RouteNetlinkMessage;
use netlink_packet_route::tc::{
    TcAttribute, TcFilterBpfOption, TcHandle, TcMessage, TcOption, TcStats2,
};
use netlink_sys::{Socket, SocketAddr, protocols::NETLINK_ROUTE};

/// The major number of our root, in hexadecimal digits of "slackline". Handles that the kernel
/// chooses begin at 0x8000.
const MAJOR: u16 = 0x51ac;
/// `ETH_P_ALL`.
const ALL_PROTOCOLS: u16 = 3;
/// Attributes of HTB.
const HTB_PARMS: u16 = 1;
const HTB_INIT: u16 = 2;
const HTB_RATE64: u16 = 6;
const HTB_CEIL64: u16 = 7;
/// Attributes of a BPF filter.
const BPF_FD: u16 = 6;
const BPF_NAME: u16 = 7;
/// `CLS_BPF_NAME_LEN` of net/sched/cls_bpf.c.
const NAME_MAX: usize = 256;
/// Bytes that a class may send before others have a turn. HTB warns of what it would choose itself.
const QUANTUM_BYTES: u32 = 60_000;
/// What a class may send at once: one large packet (GSO), and what it may send in 10 ms.
const BURST_BYTES: u64 = 64 << 10;
/// A tick of the packet scheduler in nanoseconds (`PSCHED_SHIFT` of net/pkt_sched.h).
const TICK_NS: u64 = 64;
/// `TC_LINKLAYER_ETHERNET`: without it HTB expects a table of rates.
const ETHERNET: u8 = 1;
/// Length of `struct tc_ratespec`, with the rate in the last word.
const RATESPEC: usize = 12;

/// What stands at a device's root.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Tc {
    /// What the kernel puts there itself.
    Default,
    Ours,
    /// What somebody chose.
    Other(String),
}

/// A class of ours.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Class {
    pub(super) minor: u16,
    pub(super) bytes_per_s: u64,
    pub(super) sent_bytes: Option<u64>,
}

/// A filter of ours. Its name in the kernel says which group it is for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Filter {
    /// Of the class that it leads to; also its priority.
    pub(super) minor: u16,
    /// The group as the kernel numbers it.
    pub(super) number: u64,
    pub(super) group: String,
}

/// The handle of a class of ours.
pub(super) fn handle(minor: u16) -> u32 {
    u32::from(MAJOR) << 16 | u32::from(minor)
}

/// A device, and a socket to talk about it.
pub(super) struct Link {
    socket: Socket,
    index: i32,
}

impl Link {
    pub(super) fn open(device: &str) -> io::Result<Self> {
        let any = rustix::net::socket(
            rustix::net::AddressFamily::INET,
            rustix::net::SocketType::DGRAM,
            None,
        )?;
        let index = rustix::net::netdevice::name_to_index(&any, device)?;
        let mut socket = Socket::new(NETLINK_ROUTE)?;
        socket.bind_auto()?;
        socket.connect(&SocketAddr::new(0, 0))?;
        Ok(Self {
            socket,
            index: i32::try_from(index).map_err(io::Error::other)?,
        })
    }

    fn message(&self, handle: u32, parent: u32) -> TcMessage {
        let mut message = TcMessage::with_index(self.index);
        message.header.handle = TcHandle::from(handle);
        message.header.parent = TcHandle::from(parent);
        message
    }

    /// Sends a request and gathers what comes back until its end.
    fn talk(&self, payload: RouteNetlinkMessage, flags: u16) -> io::Result<Vec<TcMessage>> {
        let mut header = NetlinkHeader::default();
        header.flags = NLM_F_REQUEST | flags;
        let mut message = NetlinkMessage::new(header, NetlinkPayload::from(payload));
        message.finalize();
        let mut bytes = vec![0; message.buffer_len()];
        message.serialize(&mut bytes);
        self.socket.send(&bytes, 0)?;
        let mut found = Vec::new();
        loop {
            let (bytes, _) = self.socket.recv_from_full()?;
            let mut rest = bytes.as_slice();
            while !rest.is_empty() {
                let message = NetlinkMessage::<RouteNetlinkMessage>::deserialize(rest)
                    .map_err(io::Error::other)?;
                match message.payload {
                    NetlinkPayload::Done(_) => return Ok(found),
                    NetlinkPayload::Error(error) if error.code.is_none() => return Ok(found),
                    NetlinkPayload::Error(error) => return Err(error.to_io()),
                    NetlinkPayload::InnerMessage(
                        RouteNetlinkMessage::NewQueueDiscipline(message)
                        | RouteNetlinkMessage::NewTrafficClass(message)
                        | RouteNetlinkMessage::NewTrafficFilter(message),
                    ) if message.header.index == self.index => found.push(message),
                    _ => {}
                }
                // Messages begin at multiples of four (NLMSG_ALIGNTO).
                let length = usize::try_from(message.header.length).unwrap_or(usize::MAX);
                let length = length.max(16).next_multiple_of(4);
                rest = rest.get(length..).unwrap_or_default();
            }
        }
    }

    /// What stands at the root.
    pub(super) fn root(&self) -> io::Result<Tc> {
        let request = RouteNetlinkMessage::GetQueueDiscipline(self.message(0, 0));
        let all = self.talk(request, NLM_F_DUMP)?;
        let is_root = |message: &&TcMessage| message.header.parent == TcHandle::ROOT;
        Ok(match all.iter().find(is_root) {
            None => Tc::Default,
            Some(message) if message.header.handle.major == 0 => Tc::Default,
            Some(message) if message.header.handle.major == MAJOR && kind(message) == "htb" => {
                Tc::Ours
            }
            Some(message) => Tc::Other(kind(message).to_owned()),
        })
    }

    /// Puts HTB at the root. What goes to no class is sent at once.
    pub(super) fn make_root(&self) -> io::Result<()> {
        // struct tc_htb_glob: version 3, rate2quantum 10, defcls 0, debug 0, direct_pkts 0.
        let global: Vec<u8> = [3_u32, 10, 0, 0, 0]
            .iter()
            .flat_map(|word| word.to_ne_bytes())
            .collect();
        let mut message = self.message(handle(0), u32::from(TcHandle::ROOT));
        message.attributes = attributes("htb", vec![(HTB_INIT, global)]);
        let request = RouteNetlinkMessage::NewQueueDiscipline(message);
        self.talk(request, NLM_F_ACK | NLM_F_CREATE | NLM_F_EXCL)?;
        Ok(())
    }

    /// The kernel puts its own queue discipline there again.
    pub(super) fn delete_root(&self) -> io::Result<()> {
        let message = self.message(handle(0), u32::from(TcHandle::ROOT));
        self.talk(RouteNetlinkMessage::DelQueueDiscipline(message), NLM_F_ACK)?;
        Ok(())
    }

    /// Our classes.
    pub(super) fn classes(&self) -> io::Result<Vec<Class>> {
        let request = RouteNetlinkMessage::GetTrafficClass(self.message(0, 0));
        let all = self.talk(request, NLM_F_DUMP)?;
        let ours = all
            .iter()
            .filter(|message| message.header.handle.major == MAJOR && kind(message) == "htb");
        Ok(ours.filter_map(class).collect())
    }

    /// Makes a class, or changes its rate.
    pub(super) fn set_class(&self, minor: u16, bytes_per_s: u64) -> io::Result<()> {
        let mut message = self.message(handle(minor), handle(0));
        message.attributes = attributes("htb", class_options(bytes_per_s));
        let request = RouteNetlinkMessage::NewTrafficClass(message);
        self.talk(request, NLM_F_ACK | NLM_F_CREATE)?;
        Ok(())
    }

    pub(super) fn delete_class(&self, minor: u16) -> io::Result<()> {
        let message = self.message(handle(minor), 0);
        self.talk(RouteNetlinkMessage::DelTrafficClass(message), NLM_F_ACK)?;
        Ok(())
    }

    /// Our filters.
    pub(super) fn filters(&self) -> io::Result<Vec<Filter>> {
        let request = RouteNetlinkMessage::GetTrafficFilter(self.message(0, handle(0)));
        let all = self.talk(request, NLM_F_DUMP)?;
        let ours = all.iter().filter(|message| kind(message) == "bpf");
        Ok(ours.filter_map(filter).collect())
    }

    /// Leads a group's packets to a class.
    pub(super) fn add_filter(&self, filter: &Filter, program: &OwnedFd) -> io::Result<()> {
        let mut message = self.message(0, handle(0));
        message.header.info = filter_info(filter.minor);
        let fd = program.as_raw_fd().to_ne_bytes().to_vec();
        let mut name = name(filter.number, &filter.group).into_bytes();
        if name.len() >= NAME_MAX {
            return Err(io::Error::from_raw_os_error(libc::ENAMETOOLONG));
        }
        name.push(0);
        message.attributes = attributes("bpf", vec![(BPF_FD, fd), (BPF_NAME, name)]);
        let request = RouteNetlinkMessage::NewTrafficFilter(message);
        self.talk(request, NLM_F_ACK | NLM_F_CREATE | NLM_F_EXCL)?;
        Ok(())
    }

    pub(super) fn delete_filter(&self, minor: u16) -> io::Result<()> {
        let mut message = self.message(0, handle(0));
        message.header.info = filter_info(minor);
        self.talk(RouteNetlinkMessage::DelTrafficFilter(message), NLM_F_ACK)?;
        Ok(())
    }
}

fn name(number: u64, group: &str) -> String {
    format!("slackline {number} {group}")
}

fn filter(message: &TcMessage) -> Option<Filter> {
    let options = message.attributes.iter().find_map(|attribute| {
        let TcAttribute::Options(options) = attribute else {
            return None;
        };
        Some(options)
    })?;
    let named = options.iter().find_map(|option| match option {
        TcOption::Bpf(TcFilterBpfOption::ProgName(name)) => Some(name.as_str()),
        _ => None,
    })?;
    let (number, group) = named.strip_prefix("slackline ")?.split_once(' ')?;
    Some(Filter {
        minor: u16::try_from(message.header.info >> 16).ok()?,
        number: number.parse().ok()?,
        group: group.trim_end_matches('\0').to_owned(),
    })
}

/// A filter's priority, and the protocol in network order.
fn filter_info(priority: u16) -> u32 {
    u32::from(priority) << 16 | u32::from(ALL_PROTOCOLS.to_be())
}

fn kind(message: &TcMessage) -> &str {
    let mut attributes = message.attributes.iter();
    attributes
        .find_map(|attribute| match attribute {
            TcAttribute::Kind(kind) => Some(kind.as_str()),
            _ => None,
        })
        .unwrap_or_default()
}

fn attributes(kind: &str, options: Vec<(u16, Vec<u8>)>) -> Vec<TcAttribute> {
    let option = |(kind, value)| TcOption::Other(DefaultNla::new(kind, value));
    let options = options.into_iter().map(option).collect();
    vec![
        TcAttribute::Kind(kind.to_owned()),
        TcAttribute::Options(options),
    ]
}

/// `struct tc_htb_opt`: rate, ceiling, and how much may be sent at once, as the time that it takes
/// at that rate.
fn class_options(bytes_per_s: u64) -> Vec<(u16, Vec<u8>)> {
    let rate = u32::try_from(bytes_per_s).unwrap_or(u32::MAX);
    let mut specification = vec![0, ETHERNET, 0, 0, 0, 0, 0, 0];
    specification.extend(rate.to_ne_bytes());
    let burst_bytes = BURST_BYTES.saturating_add(bytes_per_s / 100);
    let burst_ns = u128::from(burst_bytes) * 1_000_000_000 / u128::from(bytes_per_s.max(1));
    let ticks = u32::try_from(burst_ns / u128::from(TICK_NS)).unwrap_or(u32::MAX);
    let mut parameters = specification.clone();
    parameters.extend(specification);
    for word in [ticks, ticks, QUANTUM_BYTES, 0, 0] {
        parameters.extend(word.to_ne_bytes());
    }
    let mut options = vec![(HTB_PARMS, parameters)];
    if rate == u32::MAX {
        let rate = bytes_per_s.to_ne_bytes().to_vec();
        options.extend([(HTB_RATE64, rate.clone()), (HTB_CEIL64, rate)]);
    }
    options
}

fn class(message: &TcMessage) -> Option<Class> {
    let options = message.attributes.iter().find_map(|attribute| {
        let TcAttribute::Options(options) = attribute else {
            return None;
        };
        match options.first()? {
            TcOption::Other(all) => Some(value(all)),
            _ => None,
        }
    })?;
    let (mut rate, mut rate64) = (None, None);
    for attribute in NlasIterator::new(options.as_slice()).flatten() {
        let bytes = attribute.value();
        match attribute.kind() {
            HTB_PARMS => {
                let word = bytes.get(RATESPEC - 4..RATESPEC)?;
                rate = Some(u64::from(u32::from_ne_bytes(word.try_into().ok()?)));
            }
            HTB_RATE64 => rate64 = Some(u64::from_ne_bytes(bytes.get(..8)?.try_into().ok()?)),
            _ => {}
        }
    }
    let sent_bytes = message.attributes.iter().find_map(|attribute| {
        let TcAttribute::Stats2(all) = attribute else {
            return None;
        };
        all.iter().find_map(|stats| match stats {
            TcStats2::Basic(basic) => Some(basic.bytes),
            _ => None,
        })
    });
    Some(Class {
        minor: message.header.handle.minor,
        bytes_per_s: rate64.or(rate)?,
        sent_bytes,
    })
}

/// The bytes of an attribute.
fn value(attribute: &DefaultNla) -> Vec<u8> {
    use netlink_packet_core::Nla as _;
    let mut bytes = vec![0; attribute.value_len()];
    attribute.emit_value(&mut bytes);
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(bytes_per_s: u64) -> Option<Class> {
        // As a dump has them: one attribute that holds all options.
        let mut bytes = Vec::new();
        for (kind, value) in class_options(bytes_per_s) {
            bytes.extend(u16::try_from(4 + value.len()).unwrap().to_ne_bytes());
            bytes.extend(kind.to_ne_bytes());
            bytes.extend(value);
        }
        let mut message = TcMessage::with_index(1);
        message.header.handle = TcHandle::from(handle(7));
        let options = TcOption::Other(DefaultNla::new(2, bytes));
        message.attributes = vec![TcAttribute::Options(vec![options])];
        class(&message)
    }

    #[test]
    fn rates_of_all_sizes_survive_the_message() {
        for rate in [1, 1000, 125_000_000, u64::from(u32::MAX), 12_500_000_000] {
            let class = parsed(rate).unwrap();
            assert_eq!((class.bytes_per_s, class.minor), (rate, 7));
        }
        let [(_, parameters)] = class_options(1_000_000).try_into().unwrap();
        assert_eq!(parameters.len(), 44);
    }
}
