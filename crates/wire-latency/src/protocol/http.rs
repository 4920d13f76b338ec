//! HTTP/1 (RFC 9112) and the frames of HTTP/2 (RFC 9113).

use super::message::{Mark, Message};

/// RFC 9110, section 9, and RFC 5789.
const METHODS: [&[u8]; 9] = [
    b"GET ",
    b"POST ",
    b"HEAD ",
    b"PUT ",
    b"DELETE ",
    b"OPTIONS ",
    b"PATCH ",
    b"CONNECT ",
    b"TRACE ",
];
/// RFC 9113, section 3.4.
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
/// Bytes of a frame's header (section 4.1).
const FRAME_HEADER: usize = 9;
/// No frame is longer unless the receiver has said so (section 4.2); what claims to be is no frame.
const FRAME_MAX: usize = 1 << 20;

pub(super) fn is_request(bytes: &[u8]) -> bool {
    METHODS.iter().any(|method| bytes.starts_with(method))
}

pub(super) fn is_preface(bytes: &[u8]) -> bool {
    bytes.starts_with(&PREFACE[..16])
}

/// The status code of an answer that begins here.
pub(super) fn status(bytes: &[u8]) -> Option<u16> {
    let code = bytes.strip_prefix(b"HTTP/1.")?.get(2..5)?;
    std::str::from_utf8(code).ok()?.parse().ok()
}

/// Whether an answer begins behind the first byte.
pub(super) fn has_further_answer(bytes: &[u8]) -> bool {
    const VERSION: &[u8] = b"HTTP/1.";
    let mut places = bytes.windows(VERSION.len()).skip(1);
    places.any(|place| place == VERSION)
}

/// A frame of HTTP/2, or the client's preface.
pub(super) fn frame(bytes: &[u8], is_client: bool) -> Message {
    if is_client && is_preface(bytes) {
        return Message::new(None, PREFACE.len());
    }
    let Some(header) = bytes.get(..FRAME_HEADER) else {
        return Message::new(Mark::More(0), None);
    };
    let length =
        usize::from(header[0]) << 16 | usize::from(header[1]) << 8 | usize::from(header[2]);
    let stream = u32::from_be_bytes([header[5] & 0x7f, header[6], header[7], header[8]]);
    // Section 6: ten types of frame; those of extensions are rare.
    if length > FRAME_MAX || header[3] > 0x10 {
        return Message::new(Mark::More(0), None);
    }
    let mark = match header[3] {
        // DATA, CONTINUATION.
        0 | 9 if stream != 0 => Some(Mark::More(stream)),
        // HEADERS; streams that a client opens have odd numbers.
        1 if stream % 2 == 1 => Some(Mark::Start(stream)),
        // RST_STREAM.
        3 => Some(Mark::Cancel(stream)),
        _ => None,
    };
    Message::new(mark, FRAME_HEADER + length)
}

#[cfg(test)]
mod tests {
    use super::super::tests::marks;
    use super::super::{Mark, Protocol};
    use super::*;

    fn framed(kind: u8, stream: u32, payload: usize) -> Vec<u8> {
        let mut bytes = vec![0];
        bytes.extend(u16::try_from(payload).unwrap().to_be_bytes());
        bytes.extend([kind, 0]);
        bytes.extend(stream.to_be_bytes());
        bytes.extend(vec![0; payload]);
        bytes
    }

    #[test]
    fn an_interim_answer_is_none() {
        assert_eq!(status(b"HTTP/1.1 200 OK"), Some(200));
        assert_eq!(status(b"HTTP/1.1 2"), None);
        assert_eq!(status(b"HTTP/2 200"), None);
        let interim = b"HTTP/1.1 100 Continue\r\n\r\n";
        assert_eq!(marks(Protocol::Http1, false, interim, 44), (vec![], false));
        let answer = b"HTTP/1.1 404 Not Found\r\n\r\n";
        assert_eq!(
            marks(Protocol::Http1, false, answer, 20),
            (vec![Mark::Start(0)], true)
        );
    }

    #[test]
    fn frames_are_told_apart_by_their_stream() {
        let client: Vec<u8> = [PREFACE, &framed(4, 0, 6), &framed(1, 1, 20)].concat();
        assert_eq!(
            marks(Protocol::Auto, true, &client, 60),
            (vec![Mark::Start(1)], false)
        );
        let server: Vec<u8> = [
            framed(4, 0, 0),
            framed(1, 1, 5),
            framed(0, 1, 500),
            framed(1, 3, 5),
        ]
        .concat();
        let (seen, is_hidden) = marks(Protocol::Http2, false, &server, 44);
        assert_eq!(
            (seen, is_hidden),
            (vec![Mark::Start(1), Mark::More(1)], true)
        );
        assert_eq!(
            marks(Protocol::Http2, false, &framed(3, 7, 4), 44).0,
            [Mark::Cancel(7)]
        );
        // A push promise, and bytes that are no frame.
        assert_eq!(marks(Protocol::Http2, false, &framed(5, 2, 4), 44).0, []);
        assert_eq!(
            marks(Protocol::Http2, false, &[0xff; 30], 30).0,
            [Mark::More(0)]
        );
    }
}
