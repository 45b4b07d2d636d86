package placement

import (
	"errors"
	"fmt"
	"slices"
	"testing"
)

// taken returns the units of some flights.
func taken(flights []*flight) (units [][2]int) {
	for _, fl := range flights {
		units = append(units, [2]int{fl.from, fl.to})
	}
	return units
}

// blocksOf returns the units of flights of whole blocks.
func blocksOf(blocks ...int) (units [][2]int) {
	for _, b := range blocks {
		units = append(units, [2]int{b * unitsOfBlock, (b + 1) * unitsOfBlock})
	}
	return units
}

// A unit is taken once, together with the absent units that follow it in its range, and with those of its
// block before it that the caller wants. Each flight lies in one block.
func TestBlockMapTakes(t *testing.T) {
	m := newBlockMap(10<<20-5, 4<<20) // 3 ranges of 4, 4 and 2 blocks, each of 8 units
	kept := map[int]bool{40: true, 50: true}
	for _, c := range []struct {
		u, from, to int
		want        [][2]int
	}{
		{40, 40, 48, [][2]int{{40, 48}}},
		{40, 40, 80, nil},
		{32, 32, 80, [][2]int{{32, 40}}}, // 40 is in flight
		{9, 9, 80, [][2]int{{9, 16}, {16, 24}, {24, 32}}},
		{8, 8, 80, [][2]int{{8, 9}}},
		{50, 50, 51, [][2]int{{50, 51}}},
		{52, 48, 60, [][2]int{{51, 56}, {56, 60}}}, // 50 is in flight
		{49, 48, 50, [][2]int{{48, 50}}},
		{61, 56, 62, [][2]int{{60, 62}}}, // 59 is present
		{79, 72, 88, [][2]int{{72, 80}}}, // the file ends
		{64, 64, 80, [][2]int{{64, 72}}},
	} {
		fl, flights, err := m.lookup(c.u, c.from, c.to)
		if err != nil || fl.from > c.u || fl.to <= c.u || !slices.Equal(taken(flights), c.want) {
			t.Errorf("lookup of %d, from %d to %d: got %d, %v; want %d", c.u, c.from, c.to, taken(flights), err, c.want)
		}
		for _, fl := range flights {
			if !kept[fl.from] {
				m.land(fl, nil)
			}
		}
	}
	if fl, flights, err := m.lookup(9, 8, 80); fl != nil || flights != nil || err != nil {
		t.Errorf("lookup of a present unit: got %v, %v, %v", fl, flights, err)
	}
	if got := m.presentTo(9, 80); got != 40 {
		t.Errorf("present from 9 to %d, want 40", got)
	}
	if got := m.presentTo(9, 12); got != 12 {
		t.Errorf("present from 9 to %d, want 12", got)
	}
	var rest [][2]int
	for u := 8; u < 80; {
		flights := m.takeFrom(u, 80)
		if flights == nil {
			break
		}
		rest, u = append(rest, taken(flights)...), flights[len(flights)-1].to
	}
	if want := [][2]int{{62, 64}}; !slices.Equal(rest, want) {
		t.Errorf("the rest: got %d, want %d", rest, want)
	}
	const inFlight, absent = 8 + 1 + 2, 8 // units; 8 units were not taken
	if got, want := m.copied(), int64(80-inFlight-absent)*unitSize; got != want {
		t.Errorf("bytes copied: got %d, want %d", got, want)
	}
	if got, want := m.room(), int64(9<<20); got != want {
		t.Errorf("room: got %d bytes, want those of 9 blocks", got)
	}
}

// Workers take the blocks after the last request of a reader first.
func TestBlockMapTakesNext(t *testing.T) {
	m := newBlockMap(9<<20-5, 2<<20)
	m.follow(4)
	var got [][2]int
	var flights []*flight
	for next := m.takeNext(); next != nil; next = m.takeNext() {
		got = append(got, taken(next)...)
		flights = append(flights, next...)
	}
	if want := blocksOf(5, 6, 7, 8, 0, 1, 2, 3, 4); !slices.Equal(got, want) {
		t.Errorf("units taken: got %d, want %d", got, want)
	}
	for i, fl := range flights {
		if last, want := m.land(fl, nil), i == len(flights)-1; last != want || m.complete.Load() != want {
			t.Errorf("landing %d of %d: got last %v, complete %v", i+1, len(flights), last, m.complete.Load())
		}
	}
	if m.copied() != m.size || m.room() != m.size {
		t.Errorf("got %d bytes copied, and room for %d; want %d", m.copied(), m.room(), m.size)
	}
	if m.fail(errBroken) {
		t.Error("a complete map was closed by fail")
	}
}

// Of a map that was closed, no block is taken. A block whose fetch failed is absent again.
func TestBlockMapFails(t *testing.T) {
	m := newBlockMap(4<<20, 1<<20)
	first, flights := m.lookupFirst(m.len())
	if again, more := m.lookupFirst(m.len()); first == nil || again != first || len(flights) != 1 || more != nil {
		t.Errorf("first block: got %v and %v, and %v and %v", first, flights, again, more)
	}
	second := m.takeNext()
	m.takeNext()
	m.land(second[0], errBroken)
	if again := m.takeNext(); !slices.Equal(taken(again), blocksOf(1)) {
		t.Errorf("taken after a failure: got %d, want the same block", taken(again))
	} else {
		m.land(again[0], errBroken)
	}
	if _, again, err := m.lookup(15, 8, 24); len(again) != 1 || err != nil {
		t.Errorf("lookup after a failure: got %v, %v; want another flight", again, err)
	}
	if !m.fail(errBroken) || m.fail(errFailed) {
		t.Error("fail does not close the map once")
	}
	if last := m.land(first, nil); last {
		t.Error("a closed map has a last block")
	}
	if fl, _, err := m.lookup(0, 0, 24); fl != nil || err != nil {
		t.Errorf("lookup of a present unit: got %v, %v", fl, err)
	}
	if _, _, err := m.lookup(16, 16, 24); !errors.Is(err, errBroken) {
		t.Errorf("lookup: got %v, want %v", err, errBroken)
	}
	if got := m.takeNext(); got != nil {
		t.Errorf("taken: %d, want none", taken(got))
	}
	if got := m.takeFrom(16, 32); got != nil {
		t.Errorf("taken: %d, want none", taken(got))
	}
	if got := fmt.Sprint(m.failure()); got != errBroken.Error() {
		t.Errorf("failure: got %v, want %v", got, errBroken)
	}
}
