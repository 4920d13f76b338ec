//! Opening a connection (RFC 9293 §3.5, RFC 7323 §2.2, RFC 2018 §2).

use super::script::{run, segments};

#[test]
fn a_peer_opens() {
    run("
        < S 0:0(0) win 1000 <mss 1460>
        > S. 0:0(0) ack 1 win 20000 <mss 1460>
        event none
        < . 1:1(0) ack 1 win 1000
        > nothing
        event Knock
    ");
}

#[test]
fn data_with_the_last_segment_of_the_handshake_counts() {
    run("
        < S 0:0(0) win 1000 <mss 1460>
        > S. 0:0(0) ack 1
        < P. 1:11(10) ack 1 win 1000
        event Knock
        event Received 10
    ");
}

#[test]
fn this_side_opens() {
    run("
        connect
        > S 0:0(0) win 20000 <mss 1460>
        < S. 0:0(0) ack 1 win 1000 <mss 1000>
        event Connected
        > . 1:1(0) ack 1
        write 1500
        > . 1:1001(1000) ack 1
        > nothing            # the peer's window is 1,000
    ");
}

#[test]
fn both_sides_open_at_once() {
    run("
        connect
        > S 0:0(0)
        < S 0:0(0) win 1000 <mss 1000>
        > S. 0:0(0) ack 1
        < S. 0:0(0) ack 1 win 1000 <mss 1000>
        event Connected
    ");
}

#[test]
fn a_syn_is_sent_again_with_doubled_waits() {
    run("
        connect
        > S 0:0(0)
        +999
        > nothing
        +2
        > S 0:0(0)
        +1998
        > nothing
        +3
        > S 0:0(0)
    ");
}

#[test]
fn a_syn_ack_is_sent_again_when_the_syn_comes_again_and_after_a_timeout() {
    run("
        < S 0:0(0) win 1000 <mss 1460>
        > S. 0:0(0) ack 1
        < S 0:0(0) win 1000 <mss 1460>
        > S. 0:0(0) ack 1
        +1001
        > S. 0:0(0) ack 1
    ");
}

#[test]
fn an_answer_to_another_connection_is_refused() {
    run("
        connect
        > S 0:0(0)
        < S. 0:0(0) ack 9 win 1000
        > R 9:9(0)
        event none
        < S. 0:0(0) ack 1 win 1000
        event Connected
    ");
}

#[test]
fn a_refusal_ends_the_attempt() {
    run("
        connect
        > S 0:0(0)
        < R. 0:0(0) ack 1
        event Dead Os(111)
    ");
}

#[test]
fn a_refusal_that_acknowledges_nothing_of_ours_is_ignored() {
    run("
        connect
        > S 0:0(0)
        < R 0:0(0)
        event none
        < R. 0:0(0) ack 77
        event none
    ");
}

#[test]
fn without_the_option_segments_have_536_bytes() {
    run("
        < S 0:0(0) win 10000
        > S. 0:0(0) ack 1
        < . 1:1(0) ack 1 win 10000
        write 1000
        > . 1:537(536) ack 1
        > . 537:1001(464) ack 1
    ");
}

#[test]
fn window_scaling_needs_both_sides_and_never_scales_the_syn() {
    run("
        set scaling on
        set window 1048576
        < S 0:0(0) win 1000 <mss 1000, wscale 2>
        > S. 0:0(0) ack 1 win 65535 <mss 1460, wscale 5>
        < . 1:1(0) ack 1 win 500
        write 3000
        > . 1:1001(1000) ack 1 win 32768
        > . 1001:2001(1000) ack 1
        > nothing            # 500 scaled by 2 are 2,000 bytes
    ");
    run("
        set scaling on
        set window 1048576
        < S 0:0(0) win 1000 <mss 1000>
        > S. 0:0(0) ack 1 win 65535
        < . 1:1(0) ack 1 win 500
        write 3000
        > . 1:501(500) ack 1 win 65535
        > nothing
    ");
}

#[test]
fn a_scale_above_14_counts_as_14() {
    let (first, second, third) = (segments(1, 10), segments(10_001, 4), segments(14_001, 4));
    let (fourth, last) = (segments(18_001, 4), segments(22_001, 2));
    // 1 scaled by 14 are 16,384 bytes. The congestion window grows to 18 segments.
    run(&format!(
        "
        set scaling on
        < S 0:0(0) win 20000 <mss 1000, wscale 15>
        > S. 0:0(0) ack 1
        < . 1:1(0) ack 1 win 1
        event Knock
        write 40000
        {first}
        < . 1:1(0) ack 2001 win 1
        {second}
        < . 1:1(0) ack 4001 win 1
        {third}
        < . 1:1(0) ack 6001 win 1
        {fourth}
        < . 1:1(0) ack 8001 win 1
        {last}
        > nothing
    "
    ));
}

#[test]
fn options_are_answered_only_if_offered() {
    run("
        set sack on
        set timestamps on
        < S 0:0(0) win 1000 <mss 1460>
        > S. 0:0(0) ack 1
    ");
    run("
        set sack on
        set timestamps on
        < S 0:0(0) win 1000 <mss 1460, sackOK, TS 100 ecr 0>
        > S. 0:0(0) ack 1 <sackOK, TS 0 ecr 100>
    ");
}

#[test]
fn a_closed_port_is_refused() {
    run("
        set listen off
        < S 0:0(0) win 1000
        > R. 0:0(0) ack 1
        < . 5:5(0) ack 9
        > R 9:9(0)
        < F 5:15(10)
        > R. 0:0(0) ack 16
        < R 5:5(0)
        < R. 5:5(0) ack 9
        > nothing                 # RFC 9293 §3.10.7.1: an RST is never answered
        event none
    ");
}

#[test]
fn a_segment_of_no_connection_is_refused_by_an_open_port() {
    run("
        set backlog 0
        < . 5:5(0) ack 9
        > R 9:9(0)
    ");
}
