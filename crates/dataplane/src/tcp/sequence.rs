//! Arithmetic of 32-bit numbers that wrap (RFC 9293 §3.4; RFC 7323 §5.2 for timestamps).

/// Whether `a` comes before `b`.
pub(crate) const fn before(a: u32, b: u32) -> bool {
    // The distance from b to a is negative when its top bit is set.
    a.wrapping_sub(b) >> 31 == 1
}

/// Whether `a` comes before `b` or is the same.
pub(crate) const fn at_most(a: u32, b: u32) -> bool {
    !before(b, a)
}

/// Whether `number` lies in the range from `start` up to, but without, `end`.
pub(crate) const fn within(number: u32, start: u32, end: u32) -> bool {
    number.wrapping_sub(start) < end.wrapping_sub(start)
}

/// The later of two numbers.
pub(crate) const fn later(a: u32, b: u32) -> u32 {
    if before(a, b) { b } else { a }
}

/// The earlier of two numbers.
pub(crate) const fn earlier(a: u32, b: u32) -> u32 {
    if before(a, b) { a } else { b }
}

/// The distance from `start` to `end`, or 0 if `end` comes first.
pub(crate) const fn distance(start: u32, end: u32) -> u32 {
    if before(end, start) {
        0
    } else {
        end.wrapping_sub(start)
    }
}

/// The low half of a time or a hash. Times in connections wrap after 71 minutes, and no round trip
/// lasts that long.
pub(crate) const fn low32(value: u64) -> u32 {
    (value & 0xffff_ffff) as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_wrap() {
        assert!(before(u32::MAX, 0));
        assert!(!before(0, u32::MAX));
        assert!(!before(7, 7));
        assert!(at_most(7, 7));
        assert!(within(2, u32::MAX, 3));
        assert!(!within(3, u32::MAX, 3));
        assert!(!within(5, 5, 5));
        assert_eq!(later(u32::MAX, 3), 3);
        assert_eq!(earlier(u32::MAX, 3), u32::MAX);
        assert_eq!(distance(u32::MAX, 3), 4);
        assert_eq!(distance(3, u32::MAX), 0);
    }
}
