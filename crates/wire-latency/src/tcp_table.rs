//! The kernel's tables of TCP sockets, `/proc/PID/net/tcp` and `tcp6` (proc_net_tcp(5)).

/// What a TCP socket is for. The numbers are those of include/net/tcp_states.h.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TcpState {
    /// It carries a connection.
    Established,
    /// It waits for connections.
    Listening,
    /// It begins or ends a connection.
    Other,
}

/// One row of a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TcpSocket {
    /// The local port.
    pub port: u16,
    /// What it is for.
    pub state: TcpState,
    /// The inode, which `/proc/PID/fd` names for the process that has the socket.
    pub inode: u64,
}

/// The sockets of a table, or of several, one after the other. Other lines are left out.
///
/// A row is `0: 0100007F:2CAA 00000000:0000 0A …`, numbers in hexadecimal; the tenth word is the
/// inode.
///
/// ```
/// let row = "0: 0100007F:2CAA 00000000:0000 0A 00000000:00000000 00:00000000 00000000 0 0 17 1";
/// let socket = wire_latency::tcp_sockets(row).next().unwrap();
/// assert_eq!((socket.port, socket.inode), (11434, 17));
/// assert_eq!(socket.state, wire_latency::TcpState::Listening);
/// ```
pub fn tcp_sockets(tables: &str) -> impl Iterator<Item = TcpSocket> {
    tables.lines().filter_map(socket)
}

fn socket(row: &str) -> Option<TcpSocket> {
    let mut words = row.split_whitespace().skip(1);
    // In these tables an IPv6 address has no colon.
    let (_, port) = words.next()?.rsplit_once(':')?;
    let port = u16::from_str_radix(port, 16).ok()?;
    let state = match words.nth(1)? {
        "01" => TcpState::Established,
        "0A" => TcpState::Listening,
        _ => TcpState::Other,
    };
    let inode = words.nth(5)?.parse().ok()?;
    Some(TcpSocket { port, state, inode })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_read_and_other_lines_are_left_out() {
        let table = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n\
             \x20  0: 00000000000000000000000001000000:1F90 00000000000000000000000001000000:C001 01 \
             00000000:00000000 00:00000000 00000000     0        0 21 1 0\n\
             \x20  1: 0100007F:1F90 00000000:0000 06 00000000:00000000 03:00000176 00000000     0        0 0 3 0\n\
             \x20  2: cut off\n\
             \x20  3: 0100007F:1F90 00000000:0000 0A\n";
        let sockets: Vec<TcpSocket> = tcp_sockets(table).collect();
        let of = |state, inode| TcpSocket {
            port: 8080,
            state,
            inode,
        };
        let expected = [of(TcpState::Established, 21), of(TcpState::Other, 0)];
        assert_eq!(sockets, expected);
    }
}
