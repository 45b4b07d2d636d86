package control

import (
	"context"
	"errors"
	"io/fs"
	"os"

	"github.com/milkweedfs/milkweed/cmd/internal/procs"
)

// startingSuffix ends the name of the file, beside the socket of a daemon, that says what its mount waits
// for.
const startingSuffix = ".starting"

// Waits says what the mount waits for before it is there, so that Find can tell it; "": for nothing. The
// text is one line.
func (l *Listener) Waits(text string) error {
	path := l.path + startingSuffix
	if text != "" {
		return os.WriteFile(path, []byte(text), 0o600)
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// Starting returns what the daemon of a mount point that has no mount yet waits for, and its process ID.
// They are "" and 0 if no daemon waits for anything. The daemon answers no requests yet.
func Starting(ctx context.Context, mountPoint string) (cause string, pid int) {
	uid := os.Geteuid()
	for _, folder := range folders(uid) {
		if checkFolder(folder, uid) != nil {
			continue
		}
		for _, path := range []string{socketPath(folder, mountPoint), namedPath(folder, mountPoint)} {
			text, _ := os.ReadFile(path + startingSuffix)
			if len(text) == 0 {
				continue
			}
			conn, err := dialSocket(ctx, path)
			if err != nil { // it was killed
				continue
			}
			pid := procs.Listener(conn)
			conn.Close()
			return string(text), pid
		}
	}
	return "", 0
}
