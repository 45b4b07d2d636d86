package fs

import (
	"os"
	"testing"
	"testing/synctest"
	"time"
)

// A request that was interrupted goes on for a while, since its caller may go on, too. When the connection has
// ended, nobody waits for it, and the mount can end.
func TestRequestIsInterrupted(t *testing.T) {
	const never = -1
	for ended, want := range map[time.Duration]time.Duration{
		never: interruptDelay, 0: 0,
		time.Second: time.Second + interruptDelay/50,
	} {
		synctest.Test(t, func(t *testing.T) {
			r, w, err := os.Pipe() // for poll(2), w is as /dev/fuse
			if err != nil {
				t.Fatal(err)
			}
			defer r.Close()
			f := &fileSystem{conn: connection{w}}
			defer f.conn.close()
			cancel := make(chan struct{})
			request := f.newRequest(cancel)
			defer request.end()
			switch ended {
			case never:
			case 0:
				r.Close()
			default:
				time.AfterFunc(ended+time.Millisecond, func() { r.Close() })
			}
			start := time.Now()
			close(cancel)
			<-request.Done()
			if got := time.Since(start); got != want {
				t.Errorf("the connection ends %v after the interruption, and the request %v, want %v", ended, got, want)
			}
		})
	}
}
