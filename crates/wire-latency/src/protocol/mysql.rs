//! The packets of MySQL and MariaDB (dev.mysql.com/doc/dev/mysql-server, "Client/Server Protocol").

use super::message::{Mark, Message};

/// Bytes of a packet's header: its length in three, its number within the exchange.
const HEADER: usize = 4;
const COM_QUIT: u8 = 0x01;
const COM_BINLOG_DUMP: u8 = 0x12;
const COM_STMT_SEND_LONG_DATA: u8 = 0x18;
const COM_STMT_CLOSE: u8 = 0x19;
const COM_BINLOG_DUMP_GTID: u8 = 0x1e;
const COM_LAST: u8 = 0x1f;

fn header(bytes: &[u8]) -> Option<(usize, u8)> {
    let header = bytes.get(..HEADER)?;
    let length =
        usize::from(header[0]) | usize::from(header[1]) << 8 | usize::from(header[2]) << 16;
    Some((HEADER + length, header[3]))
}

pub(super) fn is_command(bytes: &[u8], length: u32) -> bool {
    let Some((of_packet, number)) = header(bytes) else {
        return false;
    };
    let fits = u32::try_from(of_packet).is_ok_and(|of_packet| of_packet <= length);
    match number {
        0 => {
            fits && bytes
                .get(HEADER)
                .is_some_and(|command| *command <= COM_LAST)
        }
        // The handshake's answer, with the flag of the protocol since 4.1.
        1 => {
            fits && bytes.get(HEADER + 1).is_some_and(|flags| flags & 0x02 != 0) && length >= 32 + 4
        }
        _ => false,
    }
}

pub(super) fn client_packet(bytes: &[u8]) -> Message {
    let Some((length, number)) = header(bytes) else {
        return Message::new(Mark::More(0), None);
    };
    let mark = match (number, bytes.get(HEADER).copied()) {
        (0, Some(COM_QUIT | COM_STMT_CLOSE | COM_STMT_SEND_LONG_DATA)) => None,
        (0, Some(COM_BINLOG_DUMP | COM_BINLOG_DUMP_GTID)) => Some(Mark::Excluded(0)),
        (0, Some(0..=COM_LAST)) => Some(Mark::Start(0)),
        _ => Some(Mark::More(0)),
    };
    Message::new(mark, length)
}

pub(super) fn server_packet(bytes: &[u8]) -> Message {
    match header(bytes) {
        // The first of an answer; the greeting is number 0.
        Some((length, 1)) => Message::new(Mark::Start(0), length),
        Some((length, _)) => Message::new(Mark::More(0), length),
        None => Message::new(Mark::More(0), None),
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::marks;
    use super::super::{Mark, Protocol};

    #[test]
    fn an_exchange_begins_with_packet_0_and_its_answer_with_packet_1() {
        let client = |bytes: &[u8]| marks(Protocol::Mysql, true, bytes, 44);
        assert_eq!(
            client(b"\x09\0\0\0\x03SELECT 1"),
            (vec![Mark::Start(0)], false)
        );
        // A statement is closed, which is not answered, and the next one executed.
        let two = b"\x05\0\0\0\x19\x01\0\0\0\x0a\0\0\0\x17\x01\0\0\0\0\x01\0\0\0";
        assert_eq!(client(two), (vec![Mark::Start(0)], false));
        assert_eq!(client(b"\x01\0\0\0\x01"), (vec![], false));
        assert_eq!(client(b"\x05\0\0\0\x12\x01\0\0\0").0, [Mark::Excluded(0)]);
        let server = |bytes: &[u8]| marks(Protocol::Mysql, false, bytes, 44);
        assert_eq!(
            server(b"\x01\0\0\x01\x01\x03\0\0\x02def").0,
            [Mark::Start(0), Mark::More(0)]
        );
        assert_eq!(server(b"\x4a\0\0\0\x0a11.4").0, [Mark::More(0)]);
    }
}
