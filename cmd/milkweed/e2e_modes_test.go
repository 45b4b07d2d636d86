package main

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/milkweedfs/milkweed/cmd/internal/control"
	"github.com/milkweedfs/milkweed/cmd/internal/mounts"
	"github.com/milkweedfs/milkweed/drivers/drivertest"
)

// mountWith mounts the source with options and tiers of these quotas.
func (s *site) mountWith(options string, quotas ...string) {
	s.t.Helper()
	s.milkweed(append([]string{"mount", "-o", options}, s.mountWords(quotas...)[1:]...)...)
}

// In each mode the mount has the bytes of the source, reads each from the source once, and shows
// the mode in the status.
func TestModes(t *testing.T) {
	if testing.Short() {
		t.Skip("runs whole epochs")
	}
	parallel(t)
	for _, mode := range []string{"passthrough", "stateless", "cached"} {
		t.Run(mode, func(t *testing.T) {
			s := newSite(t)
			dataset := varied(s)
			s.write("large.rec", 9<<20)
			dataset += 9 << 20
			s.mountWith("mode="+mode, "64MiB")
			var status control.Status
			for epoch := range 3 {
				s.epoch(epoch)
				status = s.settled()
			}
			if status.Mode != mode || status.ModeReason != "it is configured" {
				t.Errorf("mode: got %s, %q", status.Mode, status.ModeReason)
			}
			if got := status.Source.Bytes; got != dataset {
				t.Errorf("bytes of the source in three epochs: got %d, want %d", got, dataset)
			}
			if got := status.Opens["tier1"][mode]; got < 201 {
				t.Errorf("opens on the tier: got %v, want at least 201", status.Opens)
			}
			if got := status.OpenedBytes["tier1"][mode]; got < dataset {
				t.Errorf("sizes of the files opened on the tier: got %d, want at least %d", got, dataset)
			}
			if got, want := status.Tiers[0].Passthrough, mode == "passthrough"; got != want || got == (status.Tiers[0].PassthroughReason != "") {
				t.Errorf("passthrough: got %v, %q", got, status.Tiers[0].PassthroughReason)
			}
			s.umount()
			s.wantNothing()
		})
	}
}

// A daemon of root raises the read-ahead of the kernel, also where /sys is read-only, as in containers.
func TestReadAhead(t *testing.T) {
	parallel(t)
	s := newSite(t)
	drivertest.Need(t, "root")
	s.write("f", 10)
	s.inNamespace("mount -o remount,bind,ro /sys")
	s.mount("64MiB")
	table, err := mounts.Read(s.table)
	s.check(err)
	m, _ := table.At(s.point)
	got, err := os.ReadFile(fmt.Sprintf("/sys/class/bdi/%d:%d/read_ahead_kb", unix.Major(m.Dev), unix.Minor(m.Dev)))
	if err != nil || string(got) != "1024\n" {
		t.Errorf("the kernel reads ahead %q KiB, %v", got, err)
	}
	s.umount()
	s.wantNothing()
}

// Mode auto chooses the mode by the sizes of the files, and the status has the reason. A user
// without the privilege for passthrough gets another mode.
func TestModeAuto(t *testing.T) {
	parallel(t)
	t.Run("small", func(t *testing.T) {
		s := newSite(t)
		varied(s)
		s.mount("64MiB")
		if got := s.status(); got.Mode != "stateless" || !strings.Contains(got.ModeReason, "KiB on average") {
			t.Errorf("got %s, %q", got.Mode, got.ModeReason)
		}
	})
	t.Run("large", func(t *testing.T) {
		s := newSite(t)
		s.write("a/f", 2<<20)
		s.mount("64MiB")
		if got := s.status(); got.Mode != "passthrough" || !strings.Contains(got.ModeReason, "2.0 MiB on average") {
			t.Errorf("got %s, %q", got.Mode, got.ModeReason)
		}
	})
	t.Run("without privilege", func(t *testing.T) {
		s := newSite(t)
		data := s.write("a/f", 2<<20)
		s.inNamespace(fuseForAll)
		s.giveToNobody()
		s.mount("64MiB")
		if got := s.status(); got.Mode != "stateless" || !strings.Contains(got.ModeReason, "CAP_SYS_ADMIN") {
			t.Errorf("got %s, %q", got.Mode, got.ModeReason)
		}
		if got := s.must("cat", s.point+"/a/f"); got != string(data) {
			t.Error("wrong bytes")
		}
		s.umount()
	})
}

// With metadata_snapshot=FILE, the second mount lists the dataset without reading the directories of
// the source. A file that is not a metadata snapshot is not overwritten.
func TestNamesAreKept(t *testing.T) {
	if testing.Short() {
		t.Skip("mounts and reads several times")
	}
	s := newSite(t)
	varied(s)
	s.age()
	names := s.dir + "/names"
	s.mountWith("metadata_snapshot="+names, "64MiB")
	want := s.must("find", s.point, "-printf", "%p %s %t %m\n")
	s.epoch(1)
	s.settled()
	s.umount()

	s.mountWith("metadata_snapshot="+names, "64MiB")
	if got := s.must("find", s.point, "-printf", "%p %s %t %m\n"); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
	s.epoch(2)
	if o := s.status().Source.SourceOperations; o.ReadDirs != 0 || o.Opens != 0 || o.Reads != 0 {
		t.Errorf("operations on the source: %+v", o)
	}
	s.umount()

	s.check(os.WriteFile(names, []byte("mine"), 0o600))
	s.mountWith("metadata_snapshot="+names, "64MiB")
	s.epoch(3)
	s.umount()
	if got, err := os.ReadFile(names); string(got) != "mine" {
		t.Errorf("the content of the file is %q, %v", got, err)
	}
	s.wantNothing()
}

// The limits of the source, on bytes and operations per second, are not exceeded.
func TestSourceCaps(t *testing.T) {
	if testing.Short() {
		t.Skip("runs whole epochs")
	}
	parallel(t)
	for option, least := range map[string]time.Duration{
		"source_bandwidth=20MB":  400 * time.Millisecond, // 9.4 MB; the burst is 10 ms
		"source_operations=1000": 500 * time.Millisecond, // at least 600: names, opens and reads
	} {
		t.Run(option, func(t *testing.T) {
			s := newSite(t)
			for i := range 300 {
				s.write(fmt.Sprintf("%03d", i), 31_250)
			}
			s.mountWith(option, "64MiB")
			start := time.Now()
			s.milkweed("warmup", s.point)
			if took := time.Since(start); took < least {
				t.Errorf("it took %v, want at least %v", took, least)
			}
			status := s.settled()
			if status.Source.Passthrough || status.Placement.Placed != 300 {
				t.Errorf("placed %d, passthrough of the source %v", status.Placement.Placed, status.Source.Passthrough)
			}
			s.umount()
		})
	}
}

// If half of a dataset fits into the tiers, the other half is opened at the source once, and not
// in each epoch.
func TestSourceIsOpenedOnce(t *testing.T) {
	if testing.Short() {
		t.Skip("runs whole epochs")
	}
	s := newSite(t)
	varied(s)
	d := serveInForeground(s, "3MiB")
	for epoch := range 3 {
		s.epoch(epoch)
	}
	status := s.closed()
	if got := status.Source.Opens; got != 200 {
		t.Errorf("opens at the source in three epochs of 200 files: got %d, want 200", got)
	}
	want := 200 - status.Placement.Placed
	s.eventually(fmt.Sprintf("%d idle handles", want), func() bool { return s.status().Source.IdleHandles == want })
	d.cmd.Process.Signal(unix.SIGTERM)
	d.wait()
	s.wantNothing()
}

// Bytes that are shown are bytes that were read, however large the opened files are. In passthrough, where
// the daemon does not see reads, the column names the sizes of the opened files as that.
func TestBytesShownAreBytesRead(t *testing.T) {
	parallel(t)
	const size, opens, part = 8 << 20, 20, 64 << 10
	read := func(s *site) {
		for range opens {
			s.sh(`dd if="$1/a/f" of=/dev/null bs=64k count=1 iflag=direct 2>/dev/null`, s.point)
		}
	}
	for _, mode := range []string{"cached", "stateless"} {
		t.Run(mode, func(t *testing.T) {
			s := newSite(t)
			s.write("a/f", size)
			s.mountWith("mode="+mode, "64MiB")
			read(s)
			status, sum := s.settled(), int64(0)
			for _, n := range status.ReadBytes {
				sum += n
			}
			if sum != opens*part {
				t.Errorf("bytes read: got %v, want %d", status.ReadBytes, opens*part)
			}
			if got := s.milkweed("status", s.point); strings.Contains(got, "opened\n") {
				t.Errorf("sizes of opened files in mode %s:\n%s", mode, got)
			}
		})
	}
	t.Run("passthrough", func(t *testing.T) {
		s := newSite(t)
		s.write("a/f", size)
		s.mountWith("mode=passthrough", "64MiB")
		s.milkweed("warmup", s.point)
		s.eventually("the copy is checked", func() bool { return s.status().Fills.Unchecked == 0 })
		read(s)
		if got := s.milkweed("status", s.point); !strings.Contains(got, "160 MiB opened") {
			t.Errorf("no sizes of opened files:\n%s", got)
		}
		if got := s.status(); got.OpenedBytes["tier1"]["passthrough"] != opens*size || got.ReadBytes["tier1"] != 0 {
			t.Errorf("got %v opened, %v read", got.OpenedBytes, got.ReadBytes)
		}
	})
}
