//! Answers of HTTP/1.1, read as they come in; no I/O.

use std::mem::MaybeUninit;

use httparse::{ParserConfig, Status};

/// No head of an answer is longer.
const HEAD_MAX: usize = 256 * 1024;
/// No head has more headers.
const HEADERS_MAX: usize = 256;

/// What has been read of one answer.
#[derive(Debug, Default)]
pub(crate) struct Answer {
    part: Part,
    is_to_head: bool,
    status: u16,
    /// The connection ends with this answer.
    closes: bool,
    /// Anything of it has come.
    has_begun: bool,
    /// The beginning of a head whose end has not come.
    head: Vec<u8>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Part {
    #[default]
    Head,
    Length(u64),
    Chunk(Chunk),
    ToTheEnd,
    Done,
}

/// RFC 9112, 7.1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Chunk {
    Size {
        size: u64,
        digits: u8,
    },
    Extension {
        size: u64,
    },
    Data {
        left: u64,
    },
    AfterData,
    /// A line of the trailer; empty so far, or not.
    Trailer {
        is_empty: bool,
    },
}

/// Why an answer is none.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum BadAnswer {
    #[error("the answer is no HTTP/1.1: {0}")]
    Head(httparse::Error),
    #[error("the answer's head is too long")]
    HeadTooLong,
    #[error("the answer has two lengths, or one that is no number")]
    Length,
    #[error("a chunk of the answer has no size")]
    Chunk,
}

impl Answer {
    /// Gets ready for the next answer.
    pub(crate) fn expect(&mut self, is_to_head: bool) {
        self.part = Part::Head;
        self.is_to_head = is_to_head;
        self.status = 0;
        self.closes = false;
        self.has_begun = false;
        self.head.clear();
    }

    pub(crate) fn status(&self) -> u16 {
        self.status
    }

    pub(crate) fn closes(&self) -> bool {
        self.closes
    }

    pub(crate) fn has_begun(&self) -> bool {
        self.has_begun
    }

    pub(crate) fn is_done(&self) -> bool {
        self.part == Part::Done
    }

    /// Takes what has come. Bytes that are left over after the answer's end are counted.
    pub(crate) fn take(&mut self, bytes: &[u8]) -> Result<usize, BadAnswer> {
        if bytes.is_empty() {
            return Ok(0);
        }
        self.has_begun = true;
        if self.part != Part::Head {
            return self.take_body(bytes);
        }
        if self.head.is_empty() {
            let used = self.take_head(bytes)?;
            if self.part == Part::Head {
                self.head.extend_from_slice(&bytes[used..]);
                return Ok(0);
            }
            return self.take_body(&bytes[used..]);
        }
        let mut head = std::mem::take(&mut self.head);
        head.extend_from_slice(bytes);
        let used = self.take_head(&head)?;
        let left = if self.part == Part::Head {
            self.head.extend_from_slice(&head[used..]);
            0
        } else {
            self.take_body(&head[used..])?
        };
        // The buffer is kept for the next one.
        if self.head.is_empty() {
            head.clear();
            self.head = head;
        }
        if self.head.len() > HEAD_MAX {
            return Err(BadAnswer::HeadTooLong);
        }
        Ok(left)
    }

    /// The connection has ended: whether that is the answer's end.
    pub(crate) fn end(&mut self) -> bool {
        if self.part == Part::ToTheEnd {
            self.part = Part::Done;
        }
        self.is_done()
    }

    /// How many bytes the heads took: interim ones (103), and the last one where it is complete.
    fn take_head(&mut self, bytes: &[u8]) -> Result<usize, BadAnswer> {
        let mut used = 0;
        loop {
            let mut headers = [const { MaybeUninit::uninit() }; HEADERS_MAX];
            let mut head = httparse::Response::new(&mut []);
            let parsed = ParserConfig::default().parse_response_with_uninit_headers(
                &mut head,
                &bytes[used..],
                &mut headers,
            );
            match parsed.map_err(BadAnswer::Head)? {
                Status::Partial => return Ok(used),
                Status::Complete(length) => used += length,
            }
            let status = head.code.unwrap_or(0);
            // 101 changes the protocol: there is no other answer.
            if (100..200).contains(&status) && status != 101 {
                continue;
            }
            self.status = status;
            self.closes = head.version == Some(0) || status == 101;
            self.part = self.body_of(status, head.headers)?;
            return Ok(used);
        }
    }

    /// RFC 9112, 6.3.
    fn body_of(
        &mut self,
        status: u16,
        headers: &[httparse::Header<'_>],
    ) -> Result<Part, BadAnswer> {
        let mut length = None;
        let mut is_chunked = None;
        for header in headers {
            // By length first: most headers are none of these.
            match header.name.len() {
                10 if header.name.eq_ignore_ascii_case("connection") => {
                    let has = |word: &str| {
                        let mut words = header.value.split(|byte| *byte == b',');
                        words.any(|it| it.trim_ascii().eq_ignore_ascii_case(word.as_bytes()))
                    };
                    if has("close") {
                        self.closes = true;
                    } else if has("keep-alive") && status != 101 {
                        self.closes = false;
                    }
                }
                14 if header.name.eq_ignore_ascii_case("content-length") => {
                    let text = std::str::from_utf8(header.value).unwrap_or_default();
                    let this = text.trim().parse().map_err(|_| BadAnswer::Length)?;
                    if length.is_some_and(|length: u64| length != this) {
                        return Err(BadAnswer::Length);
                    }
                    length = Some(this);
                }
                17 if header.name.eq_ignore_ascii_case("transfer-encoding") => {
                    let last = header.value.split(|byte| *byte == b',').next_back();
                    let last = last.unwrap_or_default().trim_ascii();
                    is_chunked = Some(last.eq_ignore_ascii_case(b"chunked"));
                }
                _ => {}
            }
        }
        if self.is_to_head || matches!(status, 101 | 204 | 304) {
            return Ok(Part::Done);
        }
        Ok(match (is_chunked, length) {
            (Some(true), _) => Part::Chunk(Chunk::Size { size: 0, digits: 0 }),
            (None, Some(0)) => Part::Done,
            (None, Some(length)) => Part::Length(length),
            (Some(false), _) | (None, None) => {
                self.closes = true;
                Part::ToTheEnd
            }
        })
    }

    fn take_body(&mut self, bytes: &[u8]) -> Result<usize, BadAnswer> {
        match self.part {
            Part::Done => Ok(bytes.len()),
            Part::Head | Part::ToTheEnd => Ok(0),
            Part::Length(left) => {
                let have = bytes.len() as u64;
                if have < left {
                    self.part = Part::Length(left - have);
                    return Ok(0);
                }
                self.part = Part::Done;
                Ok(usize::try_from(have - left).unwrap_or(0))
            }
            Part::Chunk(chunk) => self.take_chunks(chunk, bytes),
        }
    }

    fn take_chunks(&mut self, mut chunk: Chunk, bytes: &[u8]) -> Result<usize, BadAnswer> {
        let mut at = 0;
        while at < bytes.len() {
            let byte = bytes[at];
            chunk = match chunk {
                Chunk::Size { size, digits } => {
                    at += 1;
                    match char::from(byte).to_digit(16) {
                        Some(digit) if digits < 16 => Chunk::Size {
                            size: size << 4 | u64::from(digit),
                            digits: digits + 1,
                        },
                        None if digits > 0 && b"\r; \t".contains(&byte) => {
                            Chunk::Extension { size }
                        }
                        None if digits > 0 && byte == b'\n' => after_size(size),
                        _ => return Err(BadAnswer::Chunk),
                    }
                }
                Chunk::Extension { size } => {
                    at += 1;
                    if byte == b'\n' {
                        after_size(size)
                    } else {
                        chunk
                    }
                }
                Chunk::Data { left } => {
                    let have = (bytes.len() - at) as u64;
                    let taken = have.min(left);
                    at += usize::try_from(taken).unwrap_or(0);
                    if taken == left {
                        Chunk::AfterData
                    } else {
                        Chunk::Data { left: left - taken }
                    }
                }
                Chunk::AfterData => {
                    at += 1;
                    match byte {
                        b'\r' => chunk,
                        b'\n' => Chunk::Size { size: 0, digits: 0 },
                        _ => return Err(BadAnswer::Chunk),
                    }
                }
                Chunk::Trailer { is_empty } => {
                    at += 1;
                    match byte {
                        b'\r' => chunk,
                        b'\n' if is_empty => {
                            self.part = Part::Done;
                            return Ok(bytes.len() - at);
                        }
                        b'\n' => Chunk::Trailer { is_empty: true },
                        _ => Chunk::Trailer { is_empty: false },
                    }
                }
            };
        }
        self.part = Part::Chunk(chunk);
        Ok(0)
    }
}

fn after_size(size: u64) -> Chunk {
    if size == 0 {
        Chunk::Trailer { is_empty: true }
    } else {
        Chunk::Data { left: size }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// The answer in pieces of that size; the status, whether it is done, what is left over,
    /// whether the connection goes on.
    fn read(
        text: &[u8],
        piece: usize,
        is_to_head: bool,
    ) -> Result<(u16, bool, usize, bool), BadAnswer> {
        let mut answer = Answer::default();
        answer.expect(is_to_head);
        let mut left = 0;
        for piece in text.chunks(piece) {
            left += answer.take(piece)?;
        }
        Ok((answer.status(), answer.is_done(), left, !answer.closes()))
    }

    #[test]
    fn answers_end_where_they_say() {
        type Read = (u16, bool, usize, bool);
        let cases: [(&str, bool, Read); 13] = [
            (
                "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok",
                false,
                (200, true, 0, true),
            ),
            (
                "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nokHT",
                false,
                (200, true, 2, true),
            ),
            (
                "HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nok",
                false,
                (200, false, 0, true),
            ),
            (
                "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n",
                true,
                (200, true, 0, true),
            ),
            ("HTTP/1.1 204 None\r\n\r\n", false, (204, true, 0, true)),
            (
                "HTTP/1.1 304 Same\r\nContent-Length: 9\r\n\r\n",
                false,
                (304, true, 0, true),
            ),
            (
                "HTTP/1.1 302 Found\r\nLocation: http://h/\r\nContent-Length: 0\r\n\r\n",
                false,
                (302, true, 0, true),
            ),
            (
                "HTTP/1.1 103 Early\r\nLink: </a>\r\n\r\nHTTP/1.1 100 Go\r\n\r\nHTTP/1.1 404 No\r\nContent-Length: 0\r\n\r\n",
                false,
                (404, true, 0, true),
            ),
            (
                "HTTP/1.1 200 OK\r\nConnection: foo, Close\r\nContent-Length: 0\r\n\r\n",
                false,
                (200, true, 0, false),
            ),
            (
                "HTTP/1.0 200 OK\r\nContent-Length: 0\r\n\r\n",
                false,
                (200, true, 0, false),
            ),
            (
                "HTTP/1.0 200 OK\r\nConnection: keep-alive\r\nContent-Length: 0\r\n\r\n",
                false,
                (200, true, 0, true),
            ),
            (
                "HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, chunked\r\n\r\n2;x=\"y\"\r\nok\r\n0a\r\n0123456789\r\n0\r\nA: b\r\n\r\n",
                false,
                (200, true, 0, true),
            ),
            (
                "HTTP/1.1 200 OK\r\n\r\nto the end",
                false,
                (200, false, 0, false),
            ),
        ];
        for (text, is_to_head, expected) in cases {
            for piece in [1, 2, 7, 1000] {
                let found = read(text.as_bytes(), piece, is_to_head);
                assert_eq!(found, Ok(expected), "{text:?} in pieces of {piece}");
            }
        }
    }

    #[test]
    fn an_answer_without_length_ends_with_its_connection() {
        let mut answer = Answer::default();
        answer.expect(false);
        answer.take(b"HTTP/1.1 200 OK\r\n\r\nab").unwrap();
        assert!(!answer.is_done() && answer.end());
        answer.expect(false);
        answer
            .take(b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nab")
            .unwrap();
        assert!(!answer.end());
    }

    #[test]
    fn what_is_no_answer_is_refused() {
        for (text, error) in [
            ("SSH-2.0-OpenSSH\r\n", "the answer is no HTTP/1.1"),
            (
                "HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n",
                "two lengths",
            ),
            (
                "HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n",
                "two lengths",
            ),
            (
                "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
                "a chunk",
            ),
            (
                "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n11111111111111111\r\n",
                "a chunk",
            ),
        ] {
            let found = read(text.as_bytes(), 1000, false).unwrap_err().to_string();
            assert!(found.contains(error), "{text:?}: {found}");
        }
        let long = format!("HTTP/1.1 200 OK\r\nA: {}", "x".repeat(2 * HEAD_MAX));
        assert_eq!(
            read(long.as_bytes(), 1000, false),
            Err(BadAnswer::HeadTooLong)
        );
    }

    proptest! {
        #[test]
        fn foreign_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..300), piece in 1usize..50) {
            let _ = read(&bytes, piece, false);
            let head = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n";
            let _ = read(&[&head[..], &bytes].concat(), piece, false);
        }

        #[test]
        fn chunks_of_any_size_are_read_whole(sizes in prop::collection::vec(1usize..5000, 0..20), piece in 1usize..3000) {
            let mut text = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n".to_vec();
            for size in &sizes {
                text.extend_from_slice(format!("{size:x}\r\n").as_bytes());
                text.extend(std::iter::repeat_n(b'\r', *size));
                text.extend_from_slice(b"\r\n");
            }
            text.extend_from_slice(b"0\r\n\r\nrest");
            let (_, is_done, left, _) = read(&text, piece, false).unwrap();
            prop_assert!(is_done);
            prop_assert_eq!(left, 4);
        }
    }
}
