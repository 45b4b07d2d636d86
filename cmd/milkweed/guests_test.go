package main

import (
	"bytes"
	"encoding/json"
	"maps"
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"
	"unicode"

	"github.com/milkweedfs/milkweed/cmd/internal/control"
	"github.com/milkweedfs/milkweed/cmd/internal/procs"
	"github.com/milkweedfs/milkweed/drivers/drivertest"
)

// The status for guests names no file and no process, and leaves that of the daemon as it is.
func TestStatusWithoutNames(t *testing.T) {
	var s control.Status
	fill(reflect.ValueOf(&s).Elem())
	before := texts(t, s)
	got := texts(t, withoutNames(s))
	want := []string{ // none of them names a file in the mount, or a process
		"dataset_id", "epochs[].opens[].level", "epochs[].waits[].cause", "epochs[].waits[].level", "exchange.id", "generation", "go_version",
		"milkweed", "mode", "mode_reason", "mount_point", "peers.nodes[].address", "peers.nodes[].name", "peers.roster.hash", "peers.self",
		"source.manifest", "source.passthrough_reason", "source.path", "source.requests.oddities[]", "source.requests.refused",
		"source.requests.refused_remedy", "tiers[].health", "tiers[].name", "tiers[].passthrough_reason", "tiers[].path", "waits[].cause",
		"waits[].level", "warnings[].level", "warnings[].message", "warnings[].tier",
	}
	if !slices.Equal(got, want) {
		t.Errorf("got %q", got)
	}
	if !slices.Equal(texts(t, s), before) {
		t.Error("the status of the daemon has changed")
	}
}

// fill sets all strings of v to "secret", and makes what they are in.
func fill(v reflect.Value) {
	switch v.Kind() {
	case reflect.String:
		v.SetString("secret")
	case reflect.Struct:
		for i := range v.NumField() {
			if v.Type().Field(i).IsExported() {
				fill(v.Field(i))
			}
		}
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		fill(v.Elem())
	case reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), 1, 1))
		fill(v.Index(0))
	}
}

// texts returns the names of the fields of the JSON of s that are "secret".
func texts(t *testing.T, s control.Status) (names []string) {
	t.Helper()
	text, err := json.Marshal(s)
	if err != nil {
		t.Fatal(err)
	}
	var value any
	if err := json.Unmarshal(text, &value); err != nil {
		t.Fatal(err)
	}
	var find func(name string, value any)
	find = func(name string, value any) {
		switch v := value.(type) {
		case string:
			if v == "secret" {
				names = append(names, strings.TrimPrefix(name, "."))
			}
		case map[string]any:
			for key, value := range v {
				find(name+"."+key, value)
			}
		case []any:
			for _, value := range v {
				find(name+"[]", value)
			}
		}
	}
	find("", value)
	slices.Sort(names)
	return names
}

// A daemon that drains receives no guest: its mount is gone, so that the kernel permits nobody to read it.
func TestNoGuestWhileDraining(t *testing.T) {
	d := &daemon{}
	if _, err := d.receive(procs.User{UID: 77}, nil); err != nil {
		t.Error(err)
	}
	d.draining.Store(true)
	if _, err := d.receive(procs.User{UID: 77}, nil); err != errDraining {
		t.Errorf("got %v", err)
	}
}

// What the daemon of another user says moves no cursor and changes no terminal.
func TestTextsAreVisible(t *testing.T) {
	var s control.Status
	const sequence = "\x1b]0;title\a\x1b[2J\u009b31m\r\t"
	s.Milkweed, s.Mode, s.ModeReason = sequence, sequence, sequence
	s.Tiers = []control.Tier{{Name: sequence, Path: sequence, Health: sequence, Reason: sequence}}
	var out bytes.Buffer
	if err := printStatus(&out, s); err != nil {
		t.Fatal(err)
	}
	if err := printLocations(&out, []control.Location{{Path: "f", State: control.AtSource, Level: sequence, Reason: sequence}}); err != nil {
		t.Fatal(err)
	}
	report(&out, control.Failure{Message: sequence, Remedy: sequence}.Err())
	got := out.String()
	if i := strings.IndexFunc(got, func(r rune) bool { return r != '\n' && r != '\t' && unicode.IsControl(r) }); i >= 0 || strings.Count(got, "title") != 12 {
		t.Errorf("at %d, %d titles: %q", i, strings.Count(got, "title"), got)
	}
}

// The daemon looks for the processes of a guest as long as the guest has a plan.
func TestPlannersDepart(t *testing.T) {
	const gone, here = 4000082, 0
	drivertest.Need(t, "root")
	p := &planners{absent: procs.Absent, ids: map[int]int{gone: 3, here: 1}}
	var dropped []int
	drop := func(uid int) { dropped = append(dropped, uid) }
	p.dropDeparted(func(int) bool { return true }, drop)
	if !slices.Equal(dropped, []int{gone}) || !maps.Equal(p.ids, map[int]int{here: 1}) {
		t.Errorf("dropped: %v, left: %v", dropped, p.ids)
	}
	p.absent = func(uids []int) []int {
		p.add(procs.User{UID: here, PID: os.Getpid()}) // the guest comes back meanwhile
		return uids
	}
	p.dropDeparted(func(int) bool { return true }, drop)
	if !slices.Equal(dropped, []int{gone}) || !maps.Equal(p.ids, map[int]int{here: 2}) {
		t.Errorf("a guest has come back: dropped: %v, left: %v", dropped, p.ids)
	}
	p.absent = procs.Absent
	p.dropDeparted(func(int) bool { return false }, drop)
	if !slices.Equal(dropped, []int{gone}) || len(p.ids) != 0 {
		t.Errorf("without a plan: dropped: %v, left: %v", dropped, p.ids)
	}
	for _, u := range []procs.User{{UID: gone, PID: os.Getpid()}, {UID: here}} {
		if p.add(u); len(p.ids) != 0 {
			t.Errorf("%+v is watched, without a process that the daemon sees", u)
		}
	}
	if p.add(procs.User{UID: here, PID: os.Getpid()}); p.ids[here] != 1 {
		t.Error("a user with a process is not watched")
	}
}
