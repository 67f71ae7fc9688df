// SPDX-License-Identifier: Apache-2.0
/* low_latency.pml: one half of the slots (with COMBINE: of the combine rows) of low-latency mode,
 * written and read repeatedly: self-signalling rows, headers with epochs, grants. README.md has
 * instructions and limits.
 *
 * Three PEs send and receive EPOCHS operations. Each chooses freely between its next send and its
 * next receive, with at most two open sends. The rows that OWNER gets from one writer are modelled
 * word by word. The protocol is the same for every pair of PEs, so the others are counted: a row of
 * PE m for epoch e has arrived if sent[m] >= e.
 *
 * Memory is weakly ordered: a store is first in flight (..._flies), and the process Wires lets it
 * arrive at any later time and in any order. The model keeps only the order on which the protocol
 * relies: stores of one writer to one address, a release after what it publishes, and the end of a
 * kernel after its own clears. Words that others only wait for (granted, sent) are set at once: a
 * late flag is equivalent to a late reader.
 *
 * Variants:  COMBINE   combine rows instead of slots: no headers; the writer of a place changes
 *            EXCHANGE  with COMBINE: weights given at the start of a send, as {epoch, weight}
 *            FLAGS     groups with masks: a flag after each row (release / acquire), no sentinel
 *            AT_ONCE   every send is received before the next one
 *            LATE      the last PE never calls the last send; the sends of the others must end
 *            GRANT_AT_RECEIVE  the half is granted when a receive ends, not by the next send
 * Mutations, each of which must fail: NO_GRANT NO_CLEAR GRANT_EARLY GRANT_UNORDERED GRANT_LATE
 *            PARTIAL_TAKE FLAG_BEFORE_ROW (with FLAGS) WEIGHT_SPLIT (with EXCHANGE)
 */
#define PES 3
#ifndef EPOCHS
#define EPOCHS 4
#endif
#ifndef SOURCE
#define SOURCE 0
#endif
#ifndef OWNER
#define OWNER 1
#endif
#define OTHER (3 - SOURCE - OWNER)
#define LAST (PES - 1)
#if defined(GRANT_EARLY) || defined(GRANT_UNORDERED)
#define GRANTS_ARE_WRONG  /* the rows must reveal it */
#endif

/* Every word of the row of epoch e holds e. */
#define SENTINEL 0
#define AT(e, w) (((e) & 1) * 2 + (w))

#ifdef COMBINE
/* The routing decides who writes the combine row of a place: a half has alternating writers. */
#define WRITER(e) (((e) / 2) % 2 -> OTHER : SOURCE)
#else
#define WRITER(e) SOURCE
#endif

/* Memory of OWNER, by half. */
byte word[4];
byte header[2];  /* epoch * 2, plus 1 if a row follows */
byte ready[2];   /* FLAGS: epoch of the row */

/* In flight to it; 0: nothing. */
byte word_flies[4];
byte header_flies[2];
byte ready_flies[2];
bit clear_flies[4];

/* EXCHANGE: weights of OWNER, at their writer (0: SOURCE, 1: OTHER) and by half. */
#define PACKET(writer, e) (((writer) == SOURCE -> 0 : 2) + ((e) & 1))
byte stamp[4], weight[4];
byte stamp_flies[4], weight_flies[4];

/* Per PE: the last epoch that it has sent, received and granted (slots_read, combine_read). */
byte sent[PES], received[PES], granted[PES];

/* Only for assertions: words not yet consumed; the last weights consumed per half. */
bit untaken[4];
byte weight_taken[2];

inline store_row(e, row) {
  d_step {
#ifndef COMBINE
    assert(header_flies[e & 1] == 0);
    header_flies[e & 1] = e * 2 + row;
#endif
    if
    :: row ->
      assert(word_flies[AT(e, 0)] == 0 && word_flies[AT(e, 1)] == 0);
      word_flies[AT(e, 0)] = e;
      word_flies[AT(e, 1)] = e;
#ifdef FLAGS
      ready_flies[e & 1] = e;
#endif
    :: else
    fi
  }
}

inline take_word(e, w) {
#ifdef FLAGS
  d_step {
    assert(word[AT(e, w)] == e);  /* not stale, not torn */
    untaken[AT(e, w)] = 0;
  }
#else
  d_step {
    word[AT(e, w)] != SENTINEL ->
      assert(word[AT(e, w)] == e);
      untaken[AT(e, w)] = 0;
#ifndef NO_CLEAR
      clear_flies[AT(e, w)] = 1;
#endif
  }
#endif
}

inline take_row(e) {
#ifdef FLAGS
  ready[e & 1] >= e;
#endif
  take_word(e, 0);
#ifdef PARTIAL_TAKE
  if
  :: e == 1 -> untaken[AT(e, 1)] = 0  /* not expected by the receiver */
  :: else -> take_word(e, 1)
  fi
#else
  take_word(e, 1)
#endif
}

inline give_weights(e) {
  d_step {
    assert(e <= 2 || weight_taken[e & 1] == e - 2);  /* the overwritten value is no longer needed */
    stamp_flies[PACKET(SOURCE, e)] = e;
    weight_flies[PACKET(SOURCE, e)] = e;
    stamp_flies[PACKET(OTHER, e)] = e;
    weight_flies[PACKET(OTHER, e)] = e;
  }
}

inline take_weight(e) {
  stamp[PACKET(_pid, e)] == e;
  d_step {
    assert(weight[PACKET(_pid, e)] == e);
    weight_taken[e & 1] = e;
  }
}

/* Steps that others cannot distinguish are one step: waits are for words that only grow. */
inline send() {
  atomic {
    e = s + 1;
#ifndef GRANT_AT_RECEIVE
#ifndef GRANT_LATE
    /* First: others may wait for it, and this PE will wait for them. */
    granted[_pid] = r;
#endif
#endif
#ifdef EXCHANGE
    if
    :: _pid == OWNER -> give_weights(e)
    :: else
    fi
#endif
  }
  atomic {
#ifndef NO_GRANT
    granted[0] + 2 >= e && granted[1] + 2 >= e && granted[2] + 2 >= e;
#ifndef GRANTS_ARE_WRONG
    /* Two results are in flight, never three. */
    assert(received[0] + 2 >= e && received[1] + 2 >= e && received[2] + 2 >= e);
#endif
#endif
#ifdef GRANT_LATE
    granted[_pid] = r;
#endif
    if
    :: _pid == WRITER(e) ->
#ifdef EXCHANGE
      take_weight(e);
#endif
#ifdef COMBINE
      store_row(e, 1)
#else
      if
      :: store_row(e, 0)  /* no expert of the token is on this PE */
      :: store_row(e, 1)
      fi
#endif
    :: else
    fi;
    s = e;
    sent[_pid] = e;
    e = 0
  }
}

#ifdef COMBINE
/* The writers of combine rows for the other PEs are left open. */
#define ALL_HAVE_SENT(e) true
#else
/* A dispatch waits for the headers of all PEs; that of SOURCE at OWNER is modelled below. */
#define HAS_SENT(m, e) (_pid == OWNER && SOURCE == m || sent[m] >= e)
#define ALL_HAVE_SENT(e) (HAS_SENT(0, e) && HAS_SENT(1, e) && HAS_SENT(2, e))
#endif

/* At OWNER. */
inline look_and_take(e) {
#ifdef COMBINE
  take_row(e);
#else
  header[e & 1] / 2 == e;
#ifdef GRANT_EARLY
  granted[_pid] = e;
#endif
  if
  :: header[e & 1] & 1 -> take_row(e)
  :: else
  fi;
#endif
#ifdef GRANT_UNORDERED
  granted[_pid] = e;
#endif
  /* The end of the kernel: its clears are done. */
  !(clear_flies[0] || clear_flies[1] || clear_flies[2] || clear_flies[3])
}

inline receive() {
  if
  :: _pid == OWNER ->
    atomic {
      e = r + 1;
      ALL_HAVE_SENT(e)
    }
    look_and_take(e)
  :: else
  fi;
  atomic {
    e = r + 1;
    ALL_HAVE_SENT(e);
    r = e;
    received[_pid] = e;
#ifdef GRANT_AT_RECEIVE
    granted[_pid] = e;
#endif
    e = 0
  }
}

#ifdef AT_ONCE
#define MAY_SEND (s == r)
#else
#define MAY_SEND (s < r + 2)
#endif
#ifdef LATE
#define TO_SEND (_pid == LAST -> EPOCHS - 1 : EPOCHS)
#define TO_RECEIVE (EPOCHS - 1)
#else
#define TO_SEND EPOCHS
#define TO_RECEIVE EPOCHS
#endif

active [PES] proctype Pe() {
  byte e, s, r;  /* s, r: as sent, received; choices over private state make fewer states */
  do
  :: s < TO_SEND && MAY_SEND -> send()
  :: r < s && r < TO_RECEIVE -> receive()
  :: s == TO_SEND && r == TO_RECEIVE -> break
  od
}

inline arrive_word(i) {
  assert(!untaken[i]);  /* nothing is overwritten before it was read */
  word[i] = word_flies[i];
  word_flies[i] = 0;
  untaken[i] = 1
}

inline clear_word(i) {
  assert(!untaken[i]);  /* a clear hits only consumed words */
  word[i] = SENTINEL;
  clear_flies[i] = 0
}

inline arrive_header(i) {
  header[i] = header_flies[i];
  header_flies[i] = 0
}

#ifdef FLAG_BEFORE_ROW
#define ROW_IS_THERE(i) true
#else
#define ROW_IS_THERE(i) (word_flies[2 * (i)] == 0 && word_flies[2 * (i) + 1] == 0)
#endif

inline arrive_ready(i) {
  ready[i] = ready_flies[i];
  ready_flies[i] = 0
}

inline arrive_packet(i) {
  stamp[i] = stamp_flies[i];
  stamp_flies[i] = 0;
#ifndef WEIGHT_SPLIT
  weight[i] = weight_flies[i];
  weight_flies[i] = 0
#endif
}

inline arrive_weight(i) {
  weight[i] = weight_flies[i];
  weight_flies[i] = 0
}

active proctype Wires() {
end:
  do
  :: d_step { word_flies[0] -> arrive_word(0) }
  :: d_step { word_flies[1] -> arrive_word(1) }
  :: d_step { word_flies[2] -> arrive_word(2) }
  :: d_step { word_flies[3] -> arrive_word(3) }
#ifndef FLAGS
  :: d_step { clear_flies[0] -> clear_word(0) }
  :: d_step { clear_flies[1] -> clear_word(1) }
  :: d_step { clear_flies[2] -> clear_word(2) }
  :: d_step { clear_flies[3] -> clear_word(3) }
#else
  :: d_step { ready_flies[0] && ROW_IS_THERE(0) -> arrive_ready(0) }
  :: d_step { ready_flies[1] && ROW_IS_THERE(1) -> arrive_ready(1) }
#endif
#ifndef COMBINE
  :: d_step { header_flies[0] -> arrive_header(0) }
  :: d_step { header_flies[1] -> arrive_header(1) }
#endif
#ifdef EXCHANGE
  :: d_step { stamp_flies[0] -> arrive_packet(0) }
  :: d_step { stamp_flies[1] -> arrive_packet(1) }
  :: d_step { stamp_flies[2] -> arrive_packet(2) }
  :: d_step { stamp_flies[3] -> arrive_packet(3) }
#ifdef WEIGHT_SPLIT
  :: d_step { weight_flies[0] -> arrive_weight(0) }
  :: d_step { weight_flies[1] -> arrive_weight(1) }
  :: d_step { weight_flies[2] -> arrive_weight(2) }
  :: d_step { weight_flies[3] -> arrive_weight(3) }
#endif
#endif
  od
}
