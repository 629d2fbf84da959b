// A web server as Go programs are, and the clients that load it, in one program on loopback.
//
// Each request opens, reads and closes a file, as a server of files or templates does. The program has
// several threads in one memory, so whoever watches it cannot believe a path that it has read: what the
// opens really did has to be verified. That is what this is for.
package main

import (
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"sync"
	"time"
)

const size = 2048

func main() {
	requests := flag.Int("requests", 20000, "how many requests are answered")
	clients := flag.Int("clients", 8, "how many are sent at a time")
	files := flag.Int("files", 16, "how many files there are")
	flag.Parse()
	elapsed, err := load(*requests, *clients, *files)
	if err != nil {
		fmt.Fprintln(os.Stderr, "go-server:", err)
		os.Exit(1)
	}
	json.NewEncoder(os.Stdout).Encode(map[string]any{
		"workload": "go-server", "operations": *requests, "elapsed_ns": elapsed.Nanoseconds(),
	})
}

// load serves a folder of files and asks for them; answers with the time that all requests took.
func load(requests, clients, files int) (time.Duration, error) {
	folder, err := os.MkdirTemp("", "go-server-")
	if err != nil {
		return 0, err
	}
	defer os.RemoveAll(folder)
	for i := range files {
		if err := os.WriteFile(name(folder, i), make([]byte, size), 0o644); err != nil {
			return 0, err
		}
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return 0, err
	}
	server := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		content, err := os.ReadFile(filepath.Join(folder, filepath.Base(r.URL.Path)))
		if err != nil {
			http.Error(w, err.Error(), http.StatusNotFound)
			return
		}
		w.Write(content)
	})}
	go server.Serve(listener)
	defer server.Close()
	url := "http://" + listener.Addr().String()
	transport := &http.Transport{MaxIdleConnsPerHost: clients}
	client := &http.Client{Transport: transport, Timeout: time.Minute}
	// Connections, threads and caches are there before the clock runs.
	if err := ask(client, url, 50*clients, clients, files); err != nil {
		return 0, err
	}
	start := time.Now()
	err = ask(client, url, requests, clients, files)
	return time.Since(start), err
}

// ask sends so many requests, and is content with nothing but whole answers.
func ask(client *http.Client, url string, requests, clients, files int) error {
	work := make(chan int)
	failed := make(chan error, clients)
	var group sync.WaitGroup
	for range clients {
		group.Add(1)
		go func() {
			defer group.Done()
			for i := range work {
				if err := askOnce(client, name(url, i%files)); err != nil {
					failed <- err
					// The others need not wait for somebody to take the rest.
					for range work {
					}
					return
				}
			}
		}()
	}
	for i := range requests {
		work <- i
	}
	close(work)
	group.Wait()
	select {
	case err := <-failed:
		return err
	default:
		return nil
	}
}

func askOnce(client *http.Client, url string) error {
	answer, err := client.Get(url)
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	length, err := io.Copy(io.Discard, answer.Body)
	if err == nil && (length != size || answer.StatusCode != http.StatusOK) {
		err = fmt.Errorf("%s: %s, %d bytes", url, answer.Status, length)
	}
	return err
}

func name(base string, i int) string {
	return fmt.Sprintf("%s/file-%d.txt", base, i)
}
